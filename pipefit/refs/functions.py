"""What a `def` accepts, read from the parsed text."""

from __future__ import annotations

from pipefit.refs.arguments import Accepted
from pipefit.refs.scopes import FunctionNode, last_name

#: Decorators that leave the arguments as they are; "function" is TensorFlow's.
_TRANSPARENT = frozenset(
    (
        "cache",
        "classmethod",
        "contextmanager",
        "final",
        "function",
        "keras_export",
        "lru_cache",
        "override",
        "register_keras_serializable",
        "staticmethod",
    )
)


def accepted_by_function(node: FunctionNode, *, bound: bool) -> Accepted | None:
    """What the function accepts; None if a decorator may change that.

    Args:
        node: the parsed function.
        bound: whether its first argument is given already (self, cls).
    """
    if all(last_name(decorator) in _TRANSPARENT for decorator in node.decorator_list):
        return Accepted.of_node(node.args, bound=bound)
    return None
