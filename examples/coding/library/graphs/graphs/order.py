"""Orders and parts of whole graphs."""


def nodes(graph):
    return sorted(set(graph) | {other for around in graph.values() for other in around})


def topological(graph):
    """The nodes so that every edge leads forward, the smallest first; ValueError where there is a cycle."""
    incoming = dict.fromkeys(nodes(graph), 0)
    for around in graph.values():
        for other in around:
            incoming[other] += 1
    ready = sorted(node for node, count in incoming.items() if count == 0)
    order = []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for other in graph.get(node, {}):
            incoming[other] -= 1
            if incoming[other] == 0:
                ready.append(other)
        ready.sort()
    if len(order) < len(incoming):
        raise ValueError("the graph has a cycle")
    return order


def reversed_edges(graph):
    out = {node: {} for node in nodes(graph)}
    for node, around in graph.items():
        for other, weight in around.items():
            out[other][node] = weight
    return out


def parts(graph):
    """The nodes that hang together, whatever the direction, as sorted lists; the largest part first."""
    back, left, found = reversed_edges(graph), set(nodes(graph)), []
    while left:
        part, waiting = set(), [min(left)]
        while waiting:
            node = waiting.pop()
            if node not in part:
                part.add(node)
                waiting += list(graph.get(node, {})) + list(back[node])
        left -= part
        found.append(sorted(part))
    return sorted(found, key=lambda part: (-len(part), part))


def degrees(graph, incoming=False):
    """How many edges leave (or reach) every node."""
    counted = reversed_edges(graph) if incoming else graph
    return {node: len(counted.get(node, {})) for node in nodes(graph)}
