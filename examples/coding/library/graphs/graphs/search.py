"""Ways from one node to others."""


def reachable(graph, start):
    """Every node that can be reached, in order."""
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        for other in graph.get(node, {}):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return sorted(seen)


def distances(graph, start):
    """The shortest distance to every node that can be reached."""
    best, done = {start: 0}, set()
    while len(done) < len(best):
        node = min((n for n in best if n not in done), key=lambda n: (best[n], n))
        done.add(node)
        for other, weight in graph.get(node, {}).items():
            distance = best[node] + weight
            if other not in best or distance < best[other]:
                best[other] = distance
    return best


def shortest_path(graph, start, end):
    """The nodes of a path with the fewest edges, or None."""
    came_from, border = {start: None}, [start]
    while border:
        following = []
        for node in border:
            for other in sorted(graph.get(node, {})):
                if other not in came_from:
                    came_from[other] = node
                    following.append(other)
        border = following
    if end not in came_from:
        return None
    path = [end]
    while came_from[path[-1]] is not None:
        path.append(came_from[path[-1]])
    return path[::-1]
