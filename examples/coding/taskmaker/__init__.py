"""Makes the recipe's tasks: correct repositories, one bug put into each, and proof that tests see it."""
