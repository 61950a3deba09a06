"""The integer keys of optimizers' states, which torch.distributed.checkpoint turns into text.

`Optimizer.load_state_dict` takes text keys without a word and begins its moments anew. The numbers are still there, in the `params` of
the optimizer's groups; by these the keys become what they were. Other dicts' integer keys are text for good: nothing tells them
from keys that always were.
"""


def renumber(tree, made=dict):
    """Gives all optimizers' states in a tree of dicts and lists their keys back, in place.

    tree: as torch unflattens it, or with dicts for lists.
    made: what makes the new dict of states, of pairs.
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
    """The numbers of an optimizer's parameters; none if its groups name them, as torch's get_optimizer_state_dict has it."""
    for group in groups.values() if isinstance(groups, dict) else groups:
        params = group.get("params") if isinstance(group, dict) else None
        yield from (number for number in (params if isinstance(params, list) else ()) if type(number) is int)
