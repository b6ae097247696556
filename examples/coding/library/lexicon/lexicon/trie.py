"""A tree of letters."""


class Trie:
    def __init__(self, words=()):
        self.root = {}
        self.size = 0
        for word in words:
            self.add(word)

    def add(self, word, value=1):
        """Add to a word's value; says whether the word is new."""
        node = self.root
        for letter in word:
            node = node.setdefault(letter, {})
        new = "" not in node
        node[""] = node.get("", 0) + value
        if new:
            self.size += 1
        return new

    def value(self, word):
        node = self.find(word)
        return 0 if node is None else node.get("", 0)

    def find(self, beginning):
        """The tree below a beginning, or None."""
        node = self.root
        for letter in beginning:
            if letter not in node:
                return None
            node = node[letter]
        return node

    def completions(self, beginning, most=10):
        """Words with this beginning: those of the highest value first, then in order."""
        node = self.find(beginning)
        if node is None:
            return []
        found = sorted(self.below(node, beginning), key=lambda pair: (-pair[1], pair[0]))
        return [word for word, _ in found[:most]]

    def below(self, node, word):
        pairs = []
        for letter, child in node.items():
            if letter == "":
                pairs.append((word, child))
            else:
                pairs += self.below(child, word + letter)
        return pairs
