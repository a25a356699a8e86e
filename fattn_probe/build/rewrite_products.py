"""Sums whose first operand is a product from an earlier statement: fused as nvcc fuses them.

    X = softcap*tanhf(X);                          // the product
    if (mask) { X += slope*mask[i]; }              // the sum

LLVM, and so nvcc, unrolls the loops around the two, and copies them for each outcome of an `if` that does not depend on
the element. Product and sum then meet in one basic block, where LLVM fuses the sum's first operand:
`fma(softcap, tanhf(X), round(slope*mask[i]))`. g++ leaves them in two blocks and fuses the second. So the product keeps
its factors in two variables like X, and the sum becomes a call of `simt::add`, which knows both ways.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from fattn_probe.cxx.statements import Function, Statement, functions, parse
from fattn_probe.cxx.tokens import Draft, Spans

UPDATES = frozenset({"=", "+=", "*="})
WEAKER_THAN_A_PRODUCT = frozenset(
    {"+", "-", "/", "%", "?", ":", ",", "=", "<", ">", "&", "|", "^", "&&", "||", "<<", "==", "!=", "<=", ">="}
)


@dataclass(frozen=True)
class Update:
    """A statement that changes a variable or an element of one.

    [start, operator) is what it changes, `stop` its semicolon; `around` are the statements that it is in.
    """

    start: int
    operator: int
    stop: int
    around: tuple[Statement, ...]


@dataclass(frozen=True)
class Addend:
    """What a sum adds: a*b, or `test ? a*b : other`; the test's span is empty if there is none.

    `product` is the `*`, `stop` the token behind b.
    """

    test: tuple[int, int]
    product: int
    stop: int


@dataclass(frozen=True)
class Body:
    """A function's statements, and those of them that change a variable."""

    draft: Draft
    statements: tuple[Statement, ...]
    updates: tuple[Update, ...]

    def base(self, update: Update) -> str:
        """The variable that a statement changes."""
        return self.draft.words[update.start]

    def path(self, update: Update) -> list[str]:
        """What a statement changes, without indices: `KQ_C[i].x[l]` is KQ_C [ . x [."""
        words, index = [], update.start
        while index < update.operator:
            words.append(self.draft.words[index])
            index = self.draft.mates[index] + 1 if words[-1] == "[" else index + 1
        return words

    def element(self, update: Update) -> list[str]:
        """What a statement changes, as written."""
        return self.draft.words[update.start : update.operator]

    def multiplication(self, start: int, stop: int) -> int | None:
        """The last `*` of an expression that is a product, or None."""
        found, index = None, start
        while index < stop:
            word = self.draft.words[index]
            if word in WEAKER_THAN_A_PRODUCT:
                return None
            found = index if word == "*" and index > start else found
            index = self.draft.mates[index] + 1 if word in ("(", "[", "{") else index + 1
        return found

    def is_product(self, update: Update) -> bool:
        """Whether a statement stores a product: `X *= a`, `X = a*b`."""
        operator = self.draft.words[update.operator]
        return operator == "*=" or (
            operator == "=" and self.multiplication(update.operator + 1, update.stop) is not None
        )

    def addend(self, update: Update) -> Addend | None:
        """What `X += a*b` or `X += test ? a*b : other` adds; None for other statements."""
        start, stop = update.operator + 1, update.stop
        question = next((index for index in range(start, stop) if self.draft.words[index] == "?"), start - 1)
        colon = next((index for index in range(question, stop) if self.draft.words[index] == ":"), stop)
        product = self.multiplication(question + 1, colon)
        is_sum = product is not None and self.draft.words[update.operator] == "+="
        return Addend((start, max(question, start)), product or 0, colon) if is_sum else None

    def declarations(self, update: Update) -> list[int]:
        """Where the variable is declared, if the element is a float or a fragment's: the statements' first tokens."""
        words = self.draft.words
        kind = "float2" if "." in self.path(update) else "float"
        return [
            it.start
            for statement in self.statements
            for it in statement.all()
            if it.kind == "plain"
            and words[it.start + 1] == self.base(update)
            and (words[it.start] == kind or words[it.start].startswith("T_"))
        ]


def rewrite_products(draft: Draft, device: Spans) -> None:
    """Fuse the sums of device code with products of earlier statements."""
    for function in functions(draft):
        if function.start in device:
            _rewrite(draft, function)


def _rewrite(draft: Draft, function: Function) -> None:
    statements = parse(draft, function.start, function.stop)
    body = Body(draft, statements, tuple(_updates(draft, statements, ())))
    products: set[Update] = set()
    for later in body.updates:
        if addend := body.addend(later):
            before = {it: tests for it in body.updates if (tests := _meeting(body, it, later)) is not None}
            products.update(before)
            if before:
                _rewrite_sum(body, later, addend, _flag(body, later, set(chain(*before.values()))))
            elif addend.test[0] != addend.test[1]:
                _rewrite_sum(body, later, addend, "")
    for product in products:
        _rewrite_product(body, product)
    for declaration in {it for product in products for it in body.declarations(product)}:
        _declare_factors(draft, declaration)


def _updates(draft: Draft, statements: tuple[Statement, ...], around: tuple[Statement, ...]) -> Iterator[Update]:
    """The statements that change a variable, in source order."""
    for statement in statements:
        if statement.kind == "plain" and (operator := _operator(draft, statement)):
            yield Update(statement.start, operator, statement.stop - 1, around)
        yield from _updates(draft, (*statement.body, *statement.orelse), (*around, statement))


def _operator(draft: Draft, statement: Statement) -> int | None:
    """The assignment behind a statement's first name, indices and members; None for other statements."""
    index = statement.start
    if not draft.is_name(index):
        return None
    index += 1
    while draft.words[index] in ("[", "."):
        index = draft.mates[index] + 1 if draft.words[index] == "[" else index + 2
    return index if draft.words[index] in UPDATES else None


def _meeting(body: Body, product: Update, later: Update) -> list[str] | None:
    """The tests, in C++, of whether a sum's first operand is an earlier product; None if it never is.

    Nothing else may change the element between the two.
    """
    if product.start >= later.start or body.path(product) != body.path(later) or not body.is_product(product):
        return None
    if not body.declarations(later):
        return None
    between = [it for it in body.updates if product.start < it.start < later.start]
    changed = any(body.element(it) == body.element(later) and not body.is_product(it) for it in between)
    if changed or _is_passed_on(body, product.stop, later.start, later):
        return None
    return _condition(body, product, later)


def _is_passed_on(body: Body, start: int, stop: int, update: Update) -> bool:
    """Whether an array is the whole argument of a call: the function may change it."""
    is_array = body.draft.words[update.start + 1] == "["
    places = [index for index in body.draft.where[body.base(update)] if start < index < stop]
    return is_array and any(body.draft.words[index + 1] != "[" for index in places)


def _condition(body: Body, product: Update, later: Update) -> list[str] | None:
    """The tests, in C++, of whether product and sum meet in a basic block; None if they never do.

    A loop around the sum alone, over something other than the elements, meets the product in its first iteration. An
    `if` around one of the two must be decided at compile time. LLVM also copies a loop for each outcome of a pointer's
    test, if product and sum are in one iteration: so it does in the vec kernel, and not in the mma kernel.
    """
    guards = [it for it in later.around if it not in product.around and it.kind != "block"]
    loops = [it for it in guards if it.kind == "for"]
    conditions = [condition for it in loops if (condition := _first_iteration(body.draft, it, later))]
    for guard in guards:
        if guard.kind == "if":
            tests = _conjuncts(body.draft, guard)
            conditions += [f"SIMT_IS_CONSTANT({test})" for test in tests if loops or not test.isidentifier()]
        elif guard.kind not in ("for", "if constexpr"):
            return None
    for guard in product.around:
        if guard not in later.around and guard.kind == "if":
            if not all(test.isidentifier() for test in _conjuncts(body.draft, guard)):
                return None
            conditions += [f"SIMT_IS_CONSTANT({test})" for test in _conjuncts(body.draft, guard)]
    return conditions


def _first_iteration(draft: Draft, loop: Statement, update: Update) -> str:
    """The test for a loop's first iteration (`for (int k0 = 0; ...`), empty if each iteration has its own element."""
    equals = next((index for index in range(*loop.head) if draft.words[index] == "="), loop.head[0])
    end = next((index for index in range(*loop.head) if draft.words[index] == ";"), loop.head[1])
    name = draft.words[equals - 1]
    return "" if name in draft.words[update.start : update.operator] else f"{name} == {draft.written(equals + 1, end)}"


def _conjuncts(draft: Draft, guard: Statement) -> list[str]:
    """The conditions that a guard joins by `&&`."""
    tests, start, index = [], guard.head[0], guard.head[0]
    while index < guard.head[1]:
        if draft.words[index] == "&&":
            tests.append(draft.written(start, index))
            start = index + 1
        index = draft.mates[index] + 1 if draft.words[index] in ("(", "[") else index + 1
    return [*tests, draft.written(start, guard.head[1])]


def _factor(body: Body, side: str, update: Update) -> str:
    """The variable of a product's left or right factor, with the indices of an update."""
    indices = body.draft.written(update.start + 1, update.operator)
    return f"simt_{side}_{body.base(update)}{indices}"


def _rewrite_sum(body: Body, update: Update, addend: Addend, flag: str) -> None:
    """Turn a sum into calls of `simt::add` and, if it adds what a test chooses, `simt::add_one_of`.

    nvcc treats a test that is decided at compile time as none. Otherwise it never fuses the earlier product, and the
    product behind the test only if a thread has several elements, whose tests it merges (read in PTX of tile kernels).
    """
    draft, element = body.draft, body.draft.written(update.start, update.operator)
    call = f"simt::add({flag}{element},"
    if addend.test[0] == addend.test[1]:
        draft.replace(update.operator, f"= {call}")
    else:
        test, factors = draft.written(*addend.test), draft.written(addend.test[1] + 1, addend.product)
        whole = f"{call} {factors}, {draft.written(addend.product + 1, addend.stop)})"
        one_of = f"simt::add_one_of(sizeof({body.base(update)})/sizeof({element}), {element},"
        draft.replace(update.operator, "=")
        draft.after(addend.test[1], f" SIMT_IS_CONSTANT({test}) ? {whole} : {one_of}")
        draft.replace(addend.stop, f": {element} +")
    draft.replace(addend.product, ",")
    draft.before(addend.stop, ")")


def _flag(body: Body, update: Update, tests: set[str]) -> str:
    """The arguments of `simt::add` for an earlier product: whether there is one, and its factors."""
    is_product = " && ".join([f"simt_is_product_{body.base(update)}", *sorted(tests)])
    return f"{is_product}, {_factor(body, 'left', update)}, {_factor(body, 'right', update)}, "


def _rewrite_product(body: Body, update: Update) -> None:
    """Keep the factors of a product."""
    draft, left, right = body.draft, _factor(body, "left", update), _factor(body, "right", update)
    if draft.words[update.operator] == "*=":
        draft.before(update.start, f"{left} = {draft.written(update.start, update.operator)}, ")
        draft.after(update.operator, f" ({right} =")
    else:
        draft.after(update.operator, f" ({left} =")
        draft.replace(body.multiplication(update.operator + 1, update.stop) or 0, f") * ({right} =")
    draft.before(update.stop, f"), simt_is_product_{body.base(update)} = true")


def _declare_factors(draft: Draft, start: int) -> None:
    """Declare the factors beside a variable, with its type and its dimensions."""
    stop = start + 2
    while draft.words[stop] == "[":
        stop = draft.mates[stop] + 1
    dimensions, name = draft.written(start + 2, stop), draft.words[start + 1]
    factors = f"simt_left_{name}{dimensions}, simt_right_{name}{dimensions}"
    draft.before(start, f"{draft.words[start]} {factors}; bool simt_is_product_{name} = false; ")
