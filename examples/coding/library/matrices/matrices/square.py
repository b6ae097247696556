"""What only square matrices have."""

from matrices.core import shape


def minor(matrix, row, column):
    """The matrix without one row and one column."""
    return [line[:column] + line[column + 1 :] for line in matrix[:row] + matrix[row + 1 :]]


def determinant(matrix):
    rows, columns = shape(matrix)
    if rows != columns:
        raise ValueError("the matrix is not square")
    if rows == 0:
        return 1
    total, sign = 0, 1
    for column in range(columns):
        total += sign * matrix[0][column] * determinant(minor(matrix, 0, column))
        sign = -sign
    return total


def trace(matrix):
    return sum(matrix[i][i] for i in range(len(matrix)))


def is_symmetric(matrix):
    size = len(matrix)
    for row in range(size):
        for column in range(row):
            if matrix[row][column] != matrix[column][row]:
                return False
    return True


def solved(matrix, right):
    """x with matrix * x = right, by Cramer's rule; None where there is not exactly one."""
    whole = determinant(matrix)
    if whole == 0:
        return None
    found = []
    for column in range(len(matrix)):
        changed = [[*row[:column], right[r], *row[column + 1 :]] for r, row in enumerate(matrix)]
        found.append(determinant(changed) / whole)
    return found
