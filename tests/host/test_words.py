"""The words that matmill once had for what the field has a word for: they do not come back.

One table says which pattern is retired, which word is used now (``docs/glossary.md`` defines it) and where the old one
still means something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
#: Hand-written text; generated pages repeat the descriptors and the remarks, so their words are looked for as well.
TREES = ("src", "tests", "docs", "benchmarks", "examples")
SUFFIXES = {".py", ".cuh", ".cu", ".md", ".toml"}
PYTHON, CUDA = (".py",), (".cuh", ".cu")
#: Where a "line" is a row or a column of a matrix. Elsewhere it is one of text, of source or of a cache.
MATRICES = (
    "src/matmill/include",
    "src/matmill/kernels",
    "src/matmill/ladder",
    "src/matmill/lowering",
    "docs/inner.md",
)
#: Words of every dictionary, which no glossary has to define.
PLAIN = {"omit"}
DEVICE = ("src/matmill/include", "src/matmill/kernels", "src/matmill/ladder")


@dataclass(frozen=True)
class Retired:
    """A retired word: its ``pattern`` per line of text, and the word ``now``, which the glossary has.

    ``under`` are the paths to look in (none: all), ``without`` the beginnings or ends of those to omit, and
    ``suffixes`` the kinds of file. What ``allowed`` matches is not looked at. Patterns ignore case, but for what they
    put in ``(?-i:…)``.
    """

    name: str
    pattern: str
    now: str
    allowed: str = r"(?!)"
    under: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = tuple(SUFFIXES)

    def looks_at(self, path: str) -> bool:
        """Tell whether the word is retired in that file."""
        inside = not self.under or path.startswith(self.under)
        omitted = path.startswith(self.without) or path.endswith(self.without)
        return inside and not omitted and path.endswith(self.suffixes)

    def hits(self) -> list[str]:
        """Return every place it is still in, as ``path:line: text``."""
        pattern, allowed = re.compile(self.pattern, re.IGNORECASE), re.compile(self.allowed, re.IGNORECASE)
        return [
            f"{path}:{number}: {line.strip()}"
            for path, text in texts().items()
            if self.looks_at(path) and pattern.search(text)  # few files go on to be read line by line
            for number, line in enumerate(text.splitlines(), 1)
            for _ in pattern.finditer(allowed.sub(" ", line))
        ]


RETIRED = (
    # Prose.
    Retired("matrix units", r"matrix[- ]units?\b", "tensor core"),
    Retired("the units", r"\bthe units\b|\b(?:on|of) (?:its|the) units\b", "tensor core", under=MATRICES),
    Retired("multiply-add", r"multipl(?:y|ies)[- ]adds?\b", "FMA", allowed=r"fused multiply-add"),
    Retired(
        "multiprocessor", r"\bmulti-?processors?\b", "SM", allowed=r"streaming multiprocessor|Multiprocessor Level"
    ),
    Retired("under way", r"\bunder[- ]way\b", "in flight"),
    Retired("in turns", r"\bin turns\b|\btak(?:e|es|ing) turns\b", "interleaved"),
    Retired("lies", r"\b(?:lies?|lying|lain)\b|\blays?\b(?! (?:\w+ )?out\b)", "layout"),
    Retired("leave away", r"\bleav(?:e|es|ing)\b[\w ]{0,20} away\b|\bleft away\b", "omit"),
    Retired("parts of k", r"\bparts? of k\b|\bpartials\b", "split-K"),
    Retired("units of a warp", r"\bunits(?:' | multiply| take| have)\b", "tensor core", under=MATRICES),
    Retired("askew", r"\baskew\b", "layout"),
    # Words of the kernels.
    Retired("portion", r"(?<!pro)portions?", "chunk"),
    Retired(
        "slab",
        r"\bslabs?\b|_slab|SLAB_",
        "epilogue staging buffer",
        under=DEVICE,
    ),
    Retired("team", r"(?<![a-z])teams?(?![a-z])", "k-group"),
    Retired(
        "border",
        r"(?<![a-z])borders?(?![a-z])",
        "remainder",
        # A property of CSS, and an address mode of textures.
        without=(
            "src/matmill/page/",
            "src/matmill/textures.py",
            "src/matmill/emulator/memory/texels.py",
            "src/matmill/emulator/families/textures.py",
            "tests/emulated/test_textures.py",
            "tests/emulated/test_texture_mistakes.py",
            "docs/emulator-textures.md",
        ),
    ),
    Retired("beyond", r"\bbeyond(?=[(<]| = |\))", "remainder", under=DEVICE),
    Retired(
        "lines",
        r"\b_?lines?\b|(?-i:\b\w*LINES\b|\bLines\w*|_lines?\b|\blines?_\w+)",
        "contiguous run",
        allowed=r"cache lines?|128-byte lines?|lines? of 128|lines? of (?:L1|L2|a cache|text|code|source)"
        r"|(?:command|source) lines?|line by line|one line per",
        under=MATRICES,
        without=("src/matmill/kernels/probe", "src/matmill/ladders/runner", "cost.py", "passes.py"),
    ),
    Retired(
        "turn",
        r"\bturned\b|(?-i:\bTurns?\b|\bTurned\b|\bTURN(?:ED)?\b)|\b(?:turn\.cuh|turns\.py)\b|matmill\.turns\b|_turned\b",
        "transpose_add",
        allowed=r"turned (?:out|off|on|into|around|away)",
    ),
    Retired("turns over", r"\bturns? (?:its|it|them|a tile|tiles|the tile|over)\b|\bturning\b", "transpose_add"),
    Retired("band", r"(?<![a-z])bands?(?![a-z])", "raster order"),
    Retired("sheet", r"(?-i:\bSheets?\b)", "shared-memory tile"),
    # Names in CUDA C++ and in configurations.
    Retired(
        "SUMS",
        r"(?-i:\bSUMS\b)|\b(?:choose|lower|transposed)_sums?\b|\bsum_(?:shape|trial)\b",
        "transpose_add",
        suffixes=PYTHON,
    ),
    Retired("sum modules", r"\bsum_(?:compare|peers|report|search|shapes)\b", "transpose_add"),
    Retired("UNITS", r"(?-i:\bUNITS\b|\bUnitProduct\b)|\bunits\.cuh\b|inner[/.]units\b", "tensor core"),
    Retired(
        "GS",
        r"(?-i:\bGS\b)",
        "split-K",
        under=("src/matmill/include", "src/matmill/kernels", "docs/inner.md"),
        # The paper's name, of its model and of the rungs after it; ``lane_product.cuh`` is the rungs'.
        without=("src/matmill/analysis/phvm.py", "src/matmill/ladders/inner/lane_product.cuh"),
    ),
    Retired(
        "join",
        r"\b(?:join|finish)\(const|\bfinish(?:,| with| \(or)|\b(?:finish|share|join) (?:and|are|is|does)\b",
        "splitk_reduce",
        under=DEVICE,
        suffixes=CUDA,
    ),
    Retired(
        "JOINED",
        r"(?-i:\bJOINED\b)|\"(?:join|joined|share|finish)\"",
        "splitk_reduce",
        without=("src/matmill/cli/probe.py",),  # the share of a peak
    ),
    Retired("share", r"\bshare\(const", "splitk_reduce", suffixes=CUDA),
    Retired("carry", r"\bcarry\b(?=\(|,|\")|\"carry\"", "accumulate_partial", under=DEVICE),
    Retired(
        "early",
        r"\bearly[= ,)\]:-](?=launch|\b(?:true|false|one|launch))|\b(?:starts|look_for)_early\b|[.]early\b|\bearly=|"
        r"launch(?:es|ed)? early|early launch|--early\b|emulator[./]early|(?-i:\bSTARTS_EARLY\b)",
        "programmatic dependent launch",
    ),
    Retired("PAD_A", r"(?-i:\bPAD_[AB]\b)|\bpad\.cuh\b|hgemm[/.]padding\b", "repack"),
    Retired(
        "padded",
        r"\bpadded\b|\bpads?\b",
        "repack",
        under=("src/matmill/kernels/hgemm", "src/matmill/kernels/hgemm/cost.py"),
    ),
    Retired("with_copies", r"\bwith_copies\b", "vector width"),
    Retired(
        "EVERY",
        r"(?-i:\b_?EVERY\b|\b_?GAPS?\b)|\bgaps?\b",
        "bank padding",
        under=("src/matmill/kernels", "src/matmill/include"),
    ),
    Retired(
        "GROUP",
        r"(?-i:\bGROUP\b)",
        "raster order",
        under=("src/matmill/kernels", "src/matmill/ladder"),
        without=("src/matmill/kernels/inner/", "src/matmill/kernels/thin/"),  # groups of indices
    ),
    Retired("ALONG", r"(?-i:\b(?:ALONG|CROSSED|MOVED|SINGLE|ASKEW)\b)", "transpose_add"),
    # Names in Python.
    Retired(
        "place",
        r"\b_?places?\b",
        "slot",
        suffixes=PYTHON,
        under=("src",),
        allowed=r"in[-_ ](?:one|its|their|that|the|another)?[-_ ]?place|in_place|tak(?:e|es|ing) place|decimal place"
        r"|the (?:one|only) place|into place|_place\(|first place|places? where|no place",
    ),
    Retired("against", r"\bagainst (?:is|=)|\bagainst\(|\bagainst\.append|import against", "why_not"),
    Retired(
        "legality",
        r"\b(?:_?no_unit|_?uncounted|_unpadded)\b|\b_?legality(?=[=:,(])|[.]legality\b|``legality``",
        "why_not",
    ),
    Retired("aim", r"\baim(?:s|ed)?\b", "bind"),
    Retired("alone", r"\balone=(?:lambda|None)|\bself\.alone\b|\balone: Callable", "last block reduction"),
    Retired("seen", r"[.]seen\b|\bseen[=:]|``seen``", "repack", under=("src/matmill/kernel", "src/matmill/plan")),
    Retired(
        "scratch",
        r"(?-i:[.]scratch\(|\bscratch[=:]|``scratch``)",
        "workspace",
        suffixes=PYTHON,
        under=("src",),
        without=("src/matmill/emulator",),
    ),
    Retired("Stage", r"(?-i:\bStage\b)", "SubProblem", suffixes=PYTHON),
    Retired(
        "old modules",
        r"\bmatmill\.(?:requests|products|sums|routes|shortcuts|turns|portions|partials|gaps|frame|scratch|allocation"
        r"|mma_tiles|tiles|layout|swizzle|source|compile|cache|gpu)\b",
        "plan",
        suffixes=PYTHON,
    ),
    Retired(
        "old headers",
        r"\bmatmill/(?:geam|tile)/|\b(?:teams|border|lines|portion|turn|bands|parts|outputs|tile_sum)\.cuh",
        "mainloop",
    ),
)


@cache
def texts() -> dict[str, str]:
    """Read every file, by its path; but for this one, which has to name the words."""
    files = [path for tree in TREES for path in sorted((ROOT / tree).rglob("*")) if path.suffix in SUFFIXES]
    files += [ROOT / "README.md", ROOT / "pyproject.toml"]
    kept = [path for path in files if path != Path(__file__).resolve() and path.is_file()]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in kept}


def terms() -> dict[str, list[str]]:
    """Return the rows of the glossary's tables by term: what it means, and where it is defined."""
    rows = (line.strip("|").split(" | ") for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if "|" in line)
    cells = ([cell.strip() for cell in row] for row in rows)
    return {row[0]: row[1:] for row in cells if row[0] != "term" and not row[0].startswith("---")}


def test_retired_words_stay_retired() -> None:
    hits = {f"{retired.name}: say {retired.now!r} (docs/glossary.md)": retired.hits() for retired in RETIRED}
    assert {word: where for word, where in hits.items() if where} == {}


def test_every_retired_word_has_one_in_the_glossary() -> None:
    assert len({retired.name for retired in RETIRED}) == len(RETIRED)
    assert {retired.now for retired in RETIRED} - PLAIN <= {term.strip("`") for term in terms()}


def test_the_glossary_is_in_order_and_whole() -> None:
    result = terms()
    assert list(result) == sorted(result, key=lambda term: term.replace("`", "").lower())
    for term, cells in result.items():
        assert len(cells) == 2, term
        meaning, source = cells
        assert meaning.endswith("."), term
        assert source, term
