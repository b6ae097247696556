"""Requirements such as `>=1.2, <2`."""

from versions.compare import compared, read

SIGNS = (">=", "<=", "==", "!=", ">", "<", "~")


def condition(text):
    """The sign and the version of one condition; == where there is no sign."""
    text = text.strip()
    for sign in SIGNS:
        if text.startswith(sign):
            return sign, text[len(sign) :].strip()
    return "==", text


def holds(order, sign):
    """Whether versions that compare so (-1, 0, 1) stand in a relation."""
    if sign in (">=", "~"):
        return order >= 0
    if sign == "<=":
        return order <= 0
    if sign == "==":
        return order == 0
    if sign == "!=":
        return order != 0
    return order > 0 if sign == ">" else order < 0


def fits(version, requirement):
    """Whether a version fulfils every condition. ~1.4 means 1.4 or later, but before 2."""
    for part in requirement.split(","):
        sign, wanted = condition(part)
        if not holds(compared(version, wanted), sign):
            return False
        if sign == "~" and read(version)[0][0] != read(wanted)[0][0]:
            return False
    return True


def fitting(versions, requirement):
    return [version for version in versions if fits(version, requirement)]
