"""One stage each: warm up, roll out, learn, evaluate, promote; and what drives them: keys, leases, supervision."""
