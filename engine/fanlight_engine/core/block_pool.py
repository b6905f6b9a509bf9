"""Pages of the KV cache as numbers: who holds which, which are free. Knows no tensors and no tokens.

Every page but the dummy is in exactly one place:

    held     references >= 1: one or more requests use it
    kept     references == 0, but the prefix cache may hand it out again; least recently released is evicted first
    free     references == 0, nobody remembers its content

Page 0 is the dummy: padding rows read and write it, nobody holds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

DUMMY_PAGE = 0


class BlockPool:
    """Reference-counted pages with an evictable middle state."""

    def __init__(self, pages: int) -> None:
        """`pages` counts the dummy, so one less can be held."""
        assert pages >= 2, "one dummy page and at least one real one"
        self.pages = pages
        self.on_evict: Callable[[int], None] = lambda page: None
        """Called with a kept page just before it is given to somebody else."""
        self._references = [0] * pages
        self._free = list(range(pages - 1, DUMMY_PAGE, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._remembered: set[int] = set()

    @property
    def usable_pages(self) -> int:
        """Pages that requests can hold in all."""
        return self.pages - 1

    @property
    def available(self) -> int:
        """Pages that `allocate` can give right now: free ones and kept ones."""
        return len(self._free) + len(self._kept)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each, or None and no change when fewer are available."""
        if count > self.available:
            return None
        return [self._take_one() for _ in range(count)]

    def retain(self, page: int) -> None:
        """One more holder of a held or kept page."""
        assert page in self._remembered or self._references[page] > 0, f"page {page} has no content to share"
        self._kept.pop(page, None)
        self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less of each page. Release a request's last page first, so that its tail is evicted first."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} released twice"
            self._references[page] -= 1
            if self._references[page] > 0:
                continue
            if page in self._remembered:
                self._kept[page] = None
            else:
                self._free.append(page)

    def remember(self, page: int) -> None:
        """Keep this held page's content after its last release, until it is evicted."""
        assert self._references[page] > 0, f"page {page} is not held"
        self._remembered.add(page)

    def is_kept(self, page: int) -> bool:
        """Whether nobody holds the page but its content is still there."""
        return page in self._kept

    def check_integrity(self, held: Iterable[int]) -> None:
        """`held` lists every page of every request, with repetition. Raises AssertionError when the books are wrong."""
        counts = [0] * self.pages
        for page in held:
            counts[page] += 1
        if counts != self._references:
            wrong = [page for page in range(self.pages) if counts[page] != self._references[page]]
            raise AssertionError(f"reference counts differ from holders at pages {wrong[:10]}")
        places = sorted([*self._free, *self._kept, *(page for page in range(self.pages) if counts[page])])
        if places != list(range(1, self.pages)):
            raise AssertionError("a page is lost or in two places")

    def _take_one(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._kept.popitem(last=False)
            self._remembered.discard(page)
            self.on_evict(page)
        self._references[page] = 1
        return page
