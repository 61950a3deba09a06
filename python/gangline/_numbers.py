"""Restores the integer keys of optimizers' states, which torch.distributed.checkpoint turns into text.

`Optimizer.load_state_dict` accepts text keys silently and starts its moments anew. The integers are still in
the `params` of the optimizer's groups, from which the keys are restored. Integer keys of other dicts stay
text: nothing distinguishes them from keys that always were text.
"""


def renumber(tree, made=dict):
    """Restores, in place, the keys of all optimizers' states in a tree of dicts and lists.

    tree: as torch unflattens it, or with dicts for lists.
    made: makes the new dict of states from pairs.
    """
    for child in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(child, (dict, list)):
            renumber(child, made)
    states, groups = (tree.get("state"), tree.get("param_groups")) if isinstance(tree, dict) else (None, None)
    if isinstance(states, dict) and isinstance(groups, (dict, list)):
        numbers = {str(number): number for number in _parameters(groups)}
        if any(key in numbers for key in states):
            tree["state"] = made((numbers.get(key, key), state) for key, state in states.items())


def _parameters(groups):
    """Returns the integers of an optimizer's parameters; none if its groups name them, as with torch's
    get_optimizer_state_dict."""
    for group in groups.values() if isinstance(groups, dict) else groups:
        params = group.get("params") if isinstance(group, dict) else None
        yield from (number for number in (params if isinstance(params, list) else ()) if type(number) is int)
