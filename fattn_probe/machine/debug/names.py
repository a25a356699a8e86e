"""Function names as debuggers and demanglers write them."""


def without_parameters(name: str) -> str:
    """The name without its parameter list: `launch_fattn<64, 8, 8>` for `launch_fattn<64, 8, 8>(ctx&, int)`."""
    depth = 0
    at = 0
    while at < len(name):
        character = name[at]
        if name.startswith("operator", at) and not name[at - 1 : at].isidentifier():
            at = _after_operator(name, at + len("operator"))
            continue
        if name.startswith("(anonymous namespace)", at):
            at += len("(anonymous namespace)")
            continue
        if character == "(" and depth == 0:
            return name[:at].rstrip()
        depth += (character in "<{(") - (character in ">})")
        at += 1
    return name


def _after_operator(name: str, at: int) -> int:
    """The end of an operator's name, whose own `<`, `>` and `(` are not brackets."""
    for symbol in ("()", "[]", "<=>", "->*", "<<=", ">>=", "<<", ">>", "<=", ">=", "->", "<", ">"):
        if name.startswith(symbol, at):
            return at + len(symbol)
    return at
