"""Conway's game of life on a grid with edges."""


def neighbours(grid, row, column):
    """How many of the eight cells around one are alive."""
    count = 0
    for r in range(max(0, row - 1), min(len(grid), row + 2)):
        for c in range(max(0, column - 1), min(len(grid[0]), column + 2)):
            if (r, c) != (row, column) and grid[r][c]:
                count += 1
    return count


def next_cell(alive, around):
    if alive:
        return 1 if around in (2, 3) else 0
    return 1 if around == 3 else 0


def step(grid, times=1):
    """The grid after so many generations."""
    for _ in range(times):
        grid = [[next_cell(cell, neighbours(grid, r, c)) for c, cell in enumerate(row)] for r, row in enumerate(grid)]
    return grid
