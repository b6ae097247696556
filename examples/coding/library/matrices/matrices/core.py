"""Sums, products and powers."""


def shape(matrix):
    return len(matrix), len(matrix[0]) if matrix else 0


def identity(size):
    return [[1 if row == column else 0 for column in range(size)] for row in range(size)]


def transposed(matrix):
    rows, columns = shape(matrix)
    return [[matrix[r][c] for r in range(rows)] for c in range(columns)]


def added(one, other, factor=1):
    """one + factor * other; ValueError where their shapes differ."""
    if shape(one) != shape(other):
        raise ValueError("the shapes differ")
    return [[a + factor * other[r][c] for c, a in enumerate(row)] for r, row in enumerate(one)]


def multiplied(one, other):
    """The product; ValueError where the shapes do not fit."""
    rows, inner = shape(one)
    height, columns = shape(other)
    if inner != height:
        raise ValueError("the shapes do not fit")
    out = []
    for r in range(rows):
        out.append([sum(one[r][i] * other[i][c] for i in range(inner)) for c in range(columns)])
    return out


def power(matrix, exponent):
    """The matrix multiplied with itself; the identity for 0."""
    result = identity(len(matrix))
    while exponent > 0:
        if exponent % 2 == 1:
            result = multiplied(result, matrix)
        matrix = multiplied(matrix, matrix)
        exponent //= 2
    return result
