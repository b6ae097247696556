"""Ways through a grid in which 1 is a wall."""


def steps_between(grid, start, end):
    """The fewest steps up, down, left or right; -1 where there is no way."""
    seen, border, steps = {start}, [start], 0
    while border:
        if end in border:
            return steps
        following = []
        for row, column in border:
            for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if inside(grid, cell) and not grid[cell[0]][cell[1]] and cell not in seen:
                    seen.add(cell)
                    following.append(cell)
        border = following
        steps += 1
    return -1


def inside(grid, cell):
    row, column = cell
    return 0 <= row < len(grid) and 0 <= column < len(grid[0])


def ways(grid):
    """In how many ways one gets from the first to the last cell by going right and down."""
    counts = [0] * len(grid[0])
    counts[0] = 1
    for row in grid:
        for column, wall in enumerate(row):
            if wall:
                counts[column] = 0
            elif column > 0:
                counts[column] += counts[column - 1]
    return counts[-1]


def rooms(grid):
    """How many areas of free cells there are."""
    free = {(r, c) for r, row in enumerate(grid) for c, wall in enumerate(row) if not wall}
    count = 0
    while free:
        count += 1
        waiting = [free.pop()]
        while waiting:
            row, column = waiting.pop()
            for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if cell in free:
                    free.remove(cell)
                    waiting.append(cell)
    return count


def rotated(grid, quarters=1):
    """The grid turned clockwise by so many quarters."""
    for _ in range(quarters % 4):
        grid = [list(row) for row in zip(*grid[::-1])]  # noqa: B905
    return grid
