"""Values that are kept for some time. The time is given with each call."""


class TimedCache:
    def __init__(self, seconds, renew=False):
        self.seconds = seconds
        self.renew = renew
        self.kept = {}

    def put(self, key, value, now):
        self.kept[key] = (value, now + self.seconds)

    def get(self, key, now):
        """The value, or None once its time is over. With `renew`, reading makes its time begin anew."""
        if key not in self.kept:
            return None
        value, until = self.kept[key]
        if now >= until:
            del self.kept[key]
            return None
        if self.renew:
            self.kept[key] = (value, now + self.seconds)
        return value

    def drop_old(self, now):
        """Forget what is over; returns how many that were."""
        old = [key for key, (_, until) in self.kept.items() if now >= until]
        for key in old:
            del self.kept[key]
        return len(old)

    def left(self, key, now):
        """Seconds that an entry has left; 0 for none."""
        if key not in self.kept:
            return 0
        return max(0, self.kept[key][1] - now)
