"""Few choices that show all values: every value of every tile field is in at least one of them."""


def covering(choices):
    """Return a subset of the choices in which each field still takes each of its values, greedily small."""
    open_pairs = {pair for choice in choices for pair in choice.tile.items()}
    picked = []
    while open_pairs:
        best = max(choices, key=lambda choice: len(open_pairs & set(choice.tile.items())))
        open_pairs -= set(best.tile.items())
        picked.append(best)
    return picked
