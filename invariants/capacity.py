"""What the largest request of one deployment needs of a row, and from which token count on a row fails.

These are searches over the formulas, on integers alone: a symbolic deployment has no largest request to look
at. They rest on two facts, which tests check by brute force: a longer request needs no fewer entries, and it
reads whatever a shorter one reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from invariants.deployment import Access, Deployment, Request, Runner
from invariants.releases import TODAY, Release, column, entries, max_request
from invariants.specs import Spec, UniformTypeSpec

__all__ = [
    "FirstFailure",
    "entries_needed",
    "first_outside",
    "first_overflow",
    "largest_access",
]


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The smallest token count that fails, counted in encoder tokens if `of_encoder`."""

    tokens: int
    of_encoder: bool = False

    def request(self, largest: Request) -> Request:
        """Return the request that fails first, given the largest one of the deployment."""
        if self.of_encoder:
            return replace(largest, num_encoder_tokens=self.tokens)
        return replace(largest, num_tokens=self.tokens, num_encoder_tokens=0)


def entries_needed(deployment: Deployment, spec: Spec, *, release: Release | str = TODAY) -> int:
    """Return the most entries that the scheduler hands over for one request of the deployment."""
    return entries(deployment, spec, max_request(deployment, release=release), release=release)


def first_overflow(
    deployment: Deployment, spec: Spec, width: int, *, release: Release | str = TODAY
) -> FirstFailure | None:
    """Return the smallest token count whose entries overflow a row of this width, or None if none does."""
    return _first(
        lambda request: entries(deployment, spec, request, release=release) > width,
        max_request(deployment, release=release),
    )


def first_outside(
    deployment: Deployment,
    spec: Spec,
    width: int,
    *,
    runner: Runner = Runner.V2,
    release: Release | str = TODAY,
) -> FirstFailure | None:
    """Return the smallest token count at which a kernel reads a column outside a row of this width."""

    def leaves(request: Request) -> bool:
        access = largest_access(deployment, spec, request, runner=runner, release=release)
        return (
            access is not None and column(deployment, spec, access, runner=runner, release=release) >= width
        )

    return _first(leaves, max_request(deployment, release=release))


def largest_access(
    deployment: Deployment,
    spec: Spec,
    request: Request,
    *,
    runner: Runner = Runner.V2,
    release: Release | str = TODAY,
) -> Access | None:
    """Return the access of a request to its row that addresses the largest column; None if nothing is read.

    The request's tokens are taken to be computed in one step, so that every position with a slot is read. Of
    several accesses to the column, one with the lowest state is returned.
    """
    layer = spec.inner if isinstance(spec, UniformTypeSpec) else spec
    if Runner(runner) not in layer.column_runners:
        return None
    whole = replace(request, num_computed_tokens=0)
    readable = [
        a for a in _candidates(deployment, spec, whole, release) if spec.readable(deployment, whole, a)
    ]
    return max(
        readable,
        key=lambda access: column(deployment, spec, access, runner=runner, release=release),
        default=None,
    )


def _candidates(
    deployment: Deployment, spec: Spec, request: Request, release: Release | str
) -> Iterator[Access]:
    """Yield the accesses among which the largest column is.

    Columns grow with the state, and with the position but for one thing: under dcp the ranks store runs of
    tokens side by side, so that the run before the last one may reach further into its block.
    """

    def is_read(position: int, state: int) -> bool:
        return spec.readable(deployment, request, Access(position=position, state=state))

    most = max(request.slot_tokens(deployment), request.num_encoder_tokens)
    last = _bisect(lambda position: not is_read(position, 0), -1, most) - 1
    run_before = last - last % deployment.interleave() - 1
    held = entries(deployment, spec, request, release=release)
    state = _bisect(lambda state: not is_read(max(last, 0), state), -1, held) - 1
    for selected in (0, state):
        for position in (last, run_before):
            if position >= 0 and selected >= 0:
                yield Access(position=position, state=selected)


def _first(fails: Callable[[Request], bool], largest: Request) -> FirstFailure | None:
    """Return the smallest request that fails, by its tokens; by its encoder tokens if only those matter."""
    if not fails(largest):
        return None
    decoder_only = replace(largest, num_encoder_tokens=0)
    if fails(decoder_only):
        return FirstFailure(
            _bisect(lambda n: fails(replace(decoder_only, num_tokens=n)), 0, largest.num_tokens)
        )
    most = largest.num_encoder_tokens
    return FirstFailure(
        _bisect(lambda n: fails(replace(largest, num_encoder_tokens=n)), -1, most), of_encoder=True
    )


def _bisect(fails: Callable[[int], bool], holds: int, at_most: int) -> int:
    """Return the first count above `holds` that fails, taking for granted that `at_most` does."""
    while at_most - holds > 1:
        middle = (holds + at_most) // 2
        if fails(middle):
            at_most = middle
        else:
            holds = middle
    return at_most
