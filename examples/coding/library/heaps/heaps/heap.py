"""A binary heap in a list: no item is smaller than the one at half its place."""


def push(heap, item):
    heap.append(item)
    at = len(heap) - 1
    while at > 0:
        parent = (at - 1) // 2
        if heap[parent] <= heap[at]:
            break
        heap[parent], heap[at] = heap[at], heap[parent]
        at = parent


def pop(heap):
    """The smallest item; IndexError where there is none."""
    if not heap:
        raise IndexError("the heap is empty")
    heap[0], heap[-1] = heap[-1], heap[0]
    smallest = heap.pop()
    at = 0
    while True:
        child = 2 * at + 1
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if child >= len(heap) or heap[at] <= heap[child]:
            return smallest
        heap[at], heap[child] = heap[child], heap[at]
        at = child


def is_heap(items):
    return all(items[(i - 1) // 2] <= items[i] for i in range(1, len(items)))


def in_order(items):
    heap = []
    for item in items:
        push(heap, item)
    return [pop(heap) for _ in range(len(items))]


def smallest(items, count=1):
    return in_order(items)[:count]


def merged(*lists):
    """Sorted lists as one sorted list."""
    heap, out = [], []
    for number, items in enumerate(lists):
        if items:
            push(heap, (items[0], number, 0))
    while heap:
        item, number, at = pop(heap)
        out.append(item)
        if at + 1 < len(lists[number]):
            push(heap, (lists[number][at + 1], number, at + 1))
    return out
