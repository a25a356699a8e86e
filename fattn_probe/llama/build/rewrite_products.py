"""Fuse sums with a product from an earlier statement, as nvcc does.

    X = softcap*tanhf(X);                          // the product
    if (mask) { X += slope*mask[i]; }              // the sum

LLVM, and therefore nvcc, unrolls the loops around both statements, and duplicates the loops for each outcome of an `if`
that does not depend on the element. Both statements then share a basic block, where LLVM fuses the sum's first operand:
`fma(softcap, tanhf(X), round(slope*mask[i]))`. g++ leaves them in two blocks and fuses the second operand. So the
product stores its factors in two variables of X's type, and the sum becomes a call to `simt::add`, which can fuse both.
A function called in between is inlined, and its branches separate the two. The tile kernel loads V in such a function:
`if (i0 + nwarps*stride_i <= I || i < I)` has no branch if nvcc knows that the first test holds. So such functions count
their evaluations of the second test, and the sum checks whether the count has changed. The same holds for f16.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import chain, pairwise

from fattn_probe.llama.cxx.functions import Function, functions
from fattn_probe.llama.cxx.statements import Statement, parse
from fattn_probe.llama.cxx.tokens import Draft, Spans

BEHIND_A_TEST = frozenset({"||", "?", ":", ",", ";", ")"})
MOST_REGISTERS = 255
"""The maximum number of registers per thread, and thus of elements in an array argument that is in registers."""
WEAKER_THAN_A_PRODUCT = frozenset(
    {"+", "-", "/", "%", "?", ":", ",", "=", "<", ">", "&", "|", "^", "&&", "||", "<<", "==", "!=", "<=", ">="}
)
CONSTANT = "SIMT_IS_CONSTANT({})"
Around = tuple[Statement, ...]
"""The statements around a statement, outermost first; the branches of an `if` with an `else` count as blocks."""


@dataclass(frozen=True)
class Update:
    """A statement that changes a variable or an element, or declares a float with a value.

    [start, operator) is the variable or element, `stop` the semicolon. With `declares`, the type precedes `start`.
    """

    start: int
    operator: int
    stop: int
    around: Around
    declares: bool


@dataclass(frozen=True)
class Addend:
    """The addend of a sum: a*b, or `test ? a*b : other`; `question` is the `?`, `product` the `*`, `stop` follows b."""

    question: int | None
    product: int
    stop: int


@dataclass(frozen=True)
class Body:
    """A function's statements, each with the statements around it, and the `updates`, which change a variable.

    `branching` are the names of the file's functions that contain `||`.
    """

    draft: Draft
    function: Function
    branching: frozenset[str]
    placed: tuple[tuple[Statement, Around], ...]
    updates: tuple[Update, ...]

    def base(self, update: Update) -> str:
        """The variable that a statement changes."""
        return self.draft.words[update.start]

    def path(self, update: Update) -> list[str]:
        """The words of a statement's variable or element, without indices: KQ_C [ . x [ for `KQ_C[i].x[l]`."""
        return [self.draft.words[index] for index in self.draft.outer(update.start, update.operator)]

    def element(self, update: Update) -> list[str]:
        """The words of the variable or element that a statement changes, with indices."""
        return self.draft.words[update.start : update.operator]

    def multiplication(self, start: int, stop: int) -> int | None:
        """The last `*` of an expression that is a product, or None."""
        outer = list(self.draft.outer(start, stop))
        if any(self.draft.words[index] in WEAKER_THAN_A_PRODUCT for index in outer):
            return None
        return next((index for index in reversed(outer[1:]) if self.draft.words[index] == "*"), None)

    def is_product(self, update: Update) -> bool:
        """Whether a statement stores a product: `X *= a`, `X = a*b`."""
        operator = self.draft.words[update.operator]
        return operator == "*=" or (
            operator == "=" and self.multiplication(update.operator + 1, update.stop) is not None
        )

    def addend(self, update: Update) -> Addend | None:
        """The addend of `X += a*b` or `X += test ? a*b : other`; None for other statements."""
        words, outer = self.draft.words, list(self.draft.outer(update.operator + 1, update.stop))
        question = next((index for index in outer if words[index] == "?"), None)
        colon = next((index for index in reversed(outer) if words[index] == ":"), update.stop)
        product = self.multiplication((question or update.operator) + 1, colon)
        return Addend(question, product, colon) if product and words[update.operator] == "+=" else None

    def declarations(self, update: Update) -> list[int]:
        """The type tokens in the declarations of an update's variable, if its type is float or `T_...`.

        The declarations are statements whose scope contains the update (several in branches of an `#if`), or a
        parameter `T_acc * const X`, an array in the caller's registers.
        """
        words, name = self.draft.words, self.base(update)
        kind = "float2" if "." in self.path(update) else "float"
        statements = [
            it.start
            for it, around in self.placed
            if it.kind == "plain"
            and it.start < update.start
            and update.around[: len(around)] == around
            and words[it.start + 1] == name
            and (words[it.start] == kind or words[it.start].startswith("T_"))
        ]
        parameter = [it for it in range(*self.function.arguments) if words[it + 1 : it + 4] == ["*", "const", name]]
        return statements or [it for it in parameter if words[it].startswith("T_")]

    def calls(self, start: int, stop: int) -> set[str]:
        """The `branching` functions that are called in [start, stop)."""
        return {it for it in self.branching if any(start <= index < stop for index in self.draft.where[it])}


def rewrite_products(draft: Draft, device: Spans, *, hip: bool = False) -> None:
    """Fuse the sums in device code with products of earlier statements; with `hip`, as clang does for AMD."""
    found = [function for function in functions(draft) if function.start in device]
    branching = {
        it.name for it in found if any(index in range(it.start, it.stop) for index in draft.where.get("||", ()))
    }
    called = set[str]()
    for function in found:
        body = _body(draft, function, frozenset(branching))
        shuffled = _rewrite_shuffled(body) if hip else frozenset[Update]()
        called |= _rewrite(body, shuffled)
    for function in found:
        if function.name in called:
            # Count how often the function evaluates the second operand of `||`.
            for index in draft.where["||"]:
                if function.start <= index < function.stop:
                    stop = next(it for it in draft.outer(index + 1, function.stop) if draft.words[it] in BEHIND_A_TEST)
                    draft.after(index, " simt::branch(")
                    draft.before(stop, ")")


def _body(draft: Draft, function: Function, branching: frozenset[str]) -> Body:
    placed = tuple(_placed(parse(draft, function.start, function.stop), ()))
    updates = []
    for statement, around in placed:
        declares = draft.words[statement.start] == "float"
        start = statement.start + declares
        if statement.kind == "plain" and draft.is_name(start):
            operator = draft.behind_variable(start)
            if draft.word(operator) in {"=", "+=", "*="}:
                updates.append(Update(start, operator, statement.stop - 1, around, declares))
    return Body(draft, function, branching, placed, tuple(updates))


def _rewrite_shuffled(body: Body) -> set[Update]:
    """Fuse sums of shuffled products; returns the products whose factors must be stored for this."""
    draft, words, products = body.draft, body.draft.words, set[Update]()
    for product, later in pairwise(body.updates):
        element = body.element(product)
        reduction = [*element, "=", "warp_reduce_sum", "(", *element, ")"]
        floats = {words[it] for it in body.declarations(product)} == {"float"} and product.around == later.around
        if floats and words[product.operator] == "*=" and words[product.stop + 1 : later.stop] == reduction:
            left, right = f"simt_left_{product.start}", f"simt_right_{product.start}"
            value = draft.written(product.start, product.operator)
            factor = draft.written(product.operator + 1, product.stop)
            draft.before(product.start, f"const float {left} = {value}, {right} = {factor}; ")
            draft.replace(later.operator + 1, "warp_reduce_sum<WARP_SIZE/2>")
            draft.after(later.operator + 2, f"__builtin_fmaf({left}, {right}, __shfl_xor_sync(0xFFFFFFFF, ")
            draft.before(later.stop - 1, ", WARP_SIZE/2, WARP_SIZE))")
    for later in body.updates:
        if words[later.start + 1 : later.operator + 2] != ["+=", "__shfl_xor_sync"] or not body.declarations(later):
            continue
        name = body.base(later)
        own = [it for it in body.updates if body.element(it) == [name] and it != later]
        before = {it for it in own if it.start < later.start and body.is_product(it)}
        before = {it for it in before if body.declarations(it) == body.declarations(later)}
        if not before:
            continue
        flag = f"simt_is_product_{name}"
        for other in own:
            if other not in before and not other.declares:
                draft.before(other.stop, f", {flag} = false")
        draft.replace(later.operator, f"= simt::add({flag}, simt_left_{name}, simt_right_{name}, {name},")
        draft.before(later.stop, f", 1.0f), {flag} = false")
        products |= before
    return products


def _rewrite(body: Body, kept: Set[Update]) -> set[str]:
    """Rewrite a function's products and sums; returns the functions called in between, whose branches must be counted.

    `kept` are products whose factors are always stored.
    """
    products = set(kept)
    called: dict[str, set[str]] = {}
    for later in body.updates:
        if addend := body.addend(later):
            before = {it: tests for it in body.updates if (tests := _meeting(body, it, later)) is not None}
            products.update(before)
            if calls := set(chain(*(body.calls(it.stop, later.start) for it in before))):
                called.setdefault(body.base(later), set()).update(calls)
            if before:
                is_product = " && ".join([f"simt_is_product_{body.base(later)}", *sorted({*chain(*before.values())})])
                factors = f"{_factor(body, 'left', later)}, {_factor(body, 'right', later)}, "
                _rewrite_sum(body, later, addend, f"{is_product}, {factors}")
            elif addend.question:
                _rewrite_sum(body, later, addend, "")
    for product in products:
        _rewrite_product(body, product, counts=body.base(product) in called)
    declared = {(it, body.base(product)) for product in products for it in body.declarations(product)}
    for declaration, name in sorted(declared):
        _declare_factors(body, declaration, name, counts=name in called)
    return set(chain(*called.values()))


def _placed(statements: tuple[Statement, ...], around: Around) -> Iterator[tuple[Statement, Around]]:
    """All statements, nested ones included, in source order, each with the statements around it."""
    for statement in statements:
        yield statement, around
        for branch in (statement.body, statement.orelse):
            block = (Statement("block", branch[0].start, branch[-1].stop),) if branch and statement.orelse else ()
            yield from _placed(branch, (*around, statement, *block))


def _meeting(body: Body, product: Update, later: Update) -> list[str] | None:
    """C++ tests of whether a sum's first operand is an earlier product; None if it never is.

    Nothing else may change the element in between.
    """
    if product.start >= later.start or body.path(product) != body.path(later) or not body.is_product(product):
        return None
    if not body.declarations(product) or body.declarations(product) != body.declarations(later):
        return None
    between = [it for it in body.updates if product.start < it.start < later.start]
    changed = any(body.element(it) == body.element(later) and not body.is_product(it) for it in between)
    words, places = body.draft.words, body.draft.where[body.base(later)]
    passed_on = words[later.start + 1] == "[" and any(  # the whole array is an argument, and the callee may change it
        product.stop < index < later.start and words[index + 1] != "[" for index in places
    )
    if changed or passed_on:
        return None
    tests = _condition(body.draft, product, later)
    if tests is not None and body.calls(product.stop, later.start):
        tests.append(f"simt::branches() == simt_branches_{body.base(later)}")
    return tests


def _condition(draft: Draft, product: Update, later: Update) -> list[str] | None:
    """C++ tests of whether product and sum meet in one basic block; None if they never do.

    If a loop around only the sum does not index the elements, product and sum meet in its first iteration. An `if`
    around only one of them must be decided at compile time. A pointer test around the sum may also be decided at run
    time if both are in the same iteration (vec, not mma): LLVM duplicates the loop for each outcome.
    """
    shared = sum(one == other for one, other in zip(product.around, later.around, strict=False))
    before, after = product.around[shared:], later.around[shared:]
    if shared and before and after and product.around[shared - 1].orelse:
        return None  # they are in different branches of an `if`
    loops = any(it.kind == "for" for it in after)
    tests: list[str] = []
    for guard in after:
        if guard.kind == "if":
            tests += [CONSTANT.format(it) for it in _conjuncts(draft, guard) if loops or not it.isidentifier()]
        elif guard.kind == "for":
            first = _first_iteration(draft, guard, later)
            if first is None:
                return None
            tests += [first] if first else []
        elif guard.kind not in ("block", "if constexpr"):
            return None
    for guard in before:
        if guard.kind == "if":
            if not all(it.isidentifier() for it in _conjuncts(draft, guard)):
                return None  # the product's names may be out of scope at the sum
            tests += map(CONSTANT.format, _conjuncts(draft, guard))
    return tests


def _first_iteration(draft: Draft, loop: Statement, update: Update) -> str | None:
    """The test for a loop's first iteration: `k0 == 0` for `for (int k0 = 0; ...`.

    Empty if each iteration has its own element; None if the loop does not begin by initialising one variable.
    """
    words, outer = draft.words, list(draft.outer(*loop.head))
    end = next((index for index in outer if words[index] in (";", ",", ":")), loop.head[1])
    equals = next((index for index in outer if index < end and words[index] == "="), None)
    if equals is None or words[end] != ";":
        return None
    name = words[equals - 1]
    return "" if name in words[update.start : update.operator] else f"{name} == {draft.written(equals + 1, end)}"


def _conjuncts(draft: Draft, guard: Statement) -> list[str]:
    """The operands of `&&` in a guard's condition."""
    joints = [index for index in draft.outer(*guard.head) if draft.words[index] == "&&"]
    edges = (guard.head[0] - 1, *joints, guard.head[1])
    return [draft.written(left + 1, right) for left, right in pairwise(edges)]


def _factor(body: Body, side: str, update: Update) -> str:
    """The variable that stores a product's left or right factor, with the indices of an update."""
    indices = body.draft.written(update.start + 1, update.operator)
    return f"simt_{side}_{body.base(update)}{indices}"


def _rewrite_sum(body: Body, update: Update, addend: Addend, flag: str) -> None:
    """Turn a sum into a call to `simt::add` or, if a test chooses the addend, also to `simt::add_one_of`.

    nvcc removes a test that is decided at compile time. With any other test, it never fuses the earlier product, and
    fuses the product under the test only if a thread has several elements, whose tests it merges (as in tile kernels).
    """
    draft, element = body.draft, body.draft.written(update.start, update.operator)
    call = f"simt::add({flag}{element},"
    if addend.question is None:
        draft.replace(update.operator, f"= {call}")
    else:
        test, factor = (
            draft.written(update.operator + 1, addend.question),
            draft.written(addend.question + 1, addend.product),
        )
        whole = f"{call} {factor}, {draft.written(addend.product + 1, addend.stop)})"
        one_of = f"simt::add_one_of(sizeof({body.base(update)})/sizeof({element}), {element},"
        draft.replace(update.operator, "=")
        draft.after(addend.question, f" SIMT_IS_CONSTANT({test}) ? {whole} : {one_of}")
        draft.replace(addend.stop, f": {element} +")
    draft.replace(addend.product, ",")
    draft.before(addend.stop, ")")


def _rewrite_product(body: Body, update: Update, *, counts: bool) -> None:
    """Store the factors of a product and, with `counts`, the count of branches so far."""
    draft, left, right = body.draft, _factor(body, "left", update), _factor(body, "right", update)
    if update.declares:
        draft.after(update.start, f"; {body.base(update)}")
    if draft.words[update.operator] == "*=":
        draft.before(update.start, f"{left} = {draft.written(update.start, update.operator)}, ")
        draft.after(update.operator, f" ({right} =")
    else:
        draft.after(update.operator, f" ({left} =")
        draft.replace(body.multiplication(update.operator + 1, update.stop) or 0, f") * ({right} =")
    count = f", simt_branches_{body.base(update)} = simt::branches()" if counts else ""
    draft.before(update.stop, f"), simt_is_product_{body.base(update)} = true{count}")


def _declare_factors(body: Body, start: int, name: str, *, counts: bool) -> None:
    """Declare the factors before a variable, with its type and dimensions; for a parameter, at the body's start."""
    draft, place = body.draft, start
    if start < body.function.start:
        place, dimensions = body.function.start, f"[{MOST_REGISTERS}]"
    else:
        stop = start + 2
        while draft.words[stop] == "[":
            stop = draft.mates[stop] + 1
        dimensions = draft.written(start + 2, stop)
    factors = f"simt_left_{name}{dimensions}, simt_right_{name}{dimensions}"
    count = f"unsigned simt_branches_{name} = 0; " if counts else ""
    draft.before(place, f"{draft.words[start]} {factors}; bool simt_is_product_{name} = false; {count}")
