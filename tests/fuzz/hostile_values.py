"""Hostile values for readers of documents: texts, numbers and pieces of YAML or JSON."""

from __future__ import annotations

from typing import Final

#: Secrets that must never be shown: in the environment, in a file outside of the workspace, in credentials,
#: and in the files themselves.
IN_ENVIRONMENT: Final = "FuzzSecretEnvironment"
OUTSIDE: Final = "FuzzSecretOutside"
IN_CREDENTIALS: Final = "FuzzSecretCredentials"
INLINE: Final = "FuzzSecretInline"
#: Code that must never be compiled, and markup that must never be part of a page.
CODE: Final = "fuzz_code"
TAG: Final = "fuzz-tag"
#: A placeholder for the folder beside the workspace.
BESIDE: Final = "@OUTSIDE@"

UNICODE: Final = (
    "\0", "\x07", "\x1b[31m", "\x7f", "\x9b31m", "\u00ad", "\u061c", "\u200b", "\u200f", "\u2028",
    "\u202e", "\u2066", "\ufeff", "\ufffe", "\uffff", "\ud800", "\udfff", "\U000e0041",
    "\U0001f469\u200d\U0001f680", "\u0430", "e\u0301", "\r", "\n", "\t", "\u0085",
)  # fmt: skip
#: All of them in one text.
ALL_OF_UNICODE: Final = "A" + "".join(
    character for character in UNICODE if character not in ("\0", "\ud800", "\udfff")
)
PATHS: Final = (
    "../x", "../../x", "../outside/secret.txt", f"{BESIDE}/secret.txt", f"{BESIDE}/new.txt",
    "../home/authorized_keys", "/dev/zero", "/dev/stdin", "~/x", "~nobody-here/x", ".", "..", "/", "", "a/../../x",
    "file:///dev/zero", "a\0b", "x" * 300, "jsplan.yaml", "pipe", "link.txt", "state/w.json",
    "state", "\\\\x", "C:\\x",
)  # fmt: skip
CODES: Final = (
    f'"""+str(exec("{CODE}=1"))+"""', f"'''+str(exec('{CODE}=1'))+'''", f"{CODE}()", "\\",
    "\\N{x}", "\\x", "\\U", '"', "'", "'''", '"""', f"{{{CODE}}}", "{}", "{0}", "%s", "%",
    f"$({CODE})", f"`{CODE}`", f"__import__('{CODE}')",
)  # fmt: skip
MARKUP: Final = (
    f"<{TAG}>", f'"><{TAG}>', f'" {TAG}="', f"--><{TAG}>", f"</style><{TAG}>", f"]]><{TAG}>",
    f"&{TAG};", "```", "|", "\n::error::x", "##[error]x", f"[x](javascript:{TAG})", "\n\n# x",
    "[bold]x[/bold]", "[/]", f"""'"]]>--></style></script><{TAG} {TAG}="&{TAG};">""",
)  # fmt: skip
REFERENCES: Final = (
    "${", "$${", "${}", "${var.x}", "${var.", "${env.FUZZ_SECRET}", "${env.FUZZ_CREDS}",
    "${env.NONE}", "${domain}", "${domain.x}", "${var.pw}", "${var.${var.x}}", "${domain}" * 50,
)  # fmt: skip
NAMES: Final = (
    "*", "**", ">", "a.>", "*.*", "a..b", ".a", "a.", "a b", "hub", "leaf", "hub/**",
    "hub/stream/A", "hub/consumer/A/C", "leaf/kv/K", "a/b/c/d", "label:edge", "label:", "!hub",
    "$JS.API", "$JS.hub.API.>", "$KV.x", "KV_x", "OBJ_x", "A", "C", "store-{1..3}", "{1..3}",
    "{3..1}", "{0..99999999999}", "{a..b}", "*a" * 12 + "c", "a" * 64, "[a-z]", "[", "?",
    "a." * 1500 + "a", "*." * 200 + ">", "S" * 300,
)  # fmt: skip
VALUES: Final = (
    "30d", "-1d", "1y1y", "99999999999999999y", "1e9s", "P1Y", "0s", "1.5GiB", "-1GiB",
    "9999999999999GiB", "NaN", "inf", "0x10", "010", "1_000", "true", "null", "~", "NO",
    "2026-13-45T99:99:99Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2026-01-01",
    "-1", "1e400", "file", "memory", "workqueue", "explicit", "by_start_time", "01:00-05:00",
    "25:00-99:00", "2MB/s", "0/s",
)  # fmt: skip
URLS: Final = (
    f"nats://u:{INLINE}@h:1", f"nats://{INLINE}@h", "http://[", "nats://[::1", "nats://h:99999",
    "nats://h:x", "://", "tls://", "nats://a,b,,c", "ws://h", "http://h/\n", "HTTP://\u200bh",
    f"nats://u:{INLINE}@h:1,nats://b", "nats://" + "h" * 5000,
)  # fmt: skip
TEXTS: Final = (
    *UNICODE, ALL_OF_UNICODE, ALL_OF_UNICODE, *PATHS, *CODES, *MARKUP, *REFERENCES, *NAMES, *VALUES, *URLS,
)  # fmt: skip

NUMBERS: Final[tuple[int | float, ...]] = (
    0, 1, -1, 2, 7, 255, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 53) + 1, (1 << 63) - 1,
    1 << 63, -(1 << 63), 1 << 64, 10**30, 1_000_000, 10**9, 2 * 10**9, 0.5, -0.0, -5.5, 1e308, -1e308, 1.5e300,
    5e-324,
)  # fmt: skip
#: Numbers that break calculations.
EXTREMES: Final[tuple[int | float, ...]] = (0, -1, 1 << 63, 10**30, 1e308, -1e308)
#: Texts that are written unquoted in the place of a value.
RAW_JSON: Final = (
    "NaN", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 400, "0" * 30 + "1",
    "[" * 100 + "]" * 100, "[" * 5000 + "]" * 5000, '{"a":' * 200 + "1" + "}" * 200, "[" * 100_000,
    '"\\ud800"', '"\\udc00\\ud800"', '"unterminated', "", "\x00", "'x'", "{,}", "[1,]",
    "/* x */ 1", "\ufeff1", "truefalse",
)  # fmt: skip


def _bomb(levels: int, width: int, leaf: str = "x") -> str:
    """Return anchors, each of which repeats the one before."""
    lines = [f"&b0 [{leaf}, {leaf}]"]
    lines += [f"&b{level} [{', '.join([f'*b{level - 1}'] * width)}]" for level in range(1, levels)]
    return f"[{', '.join(lines)}]"


def _ladder(levels: int) -> str:
    """Return anchors that nest the one before, which makes a short text deep."""
    lines = [f"&d0 {'[' * 50}x{']' * 50}"]
    lines += [f"&d{level} {'[' * 50}*d{level - 1}{']' * 50}" for level in range(1, levels)]
    return f"[{', '.join(lines)}]"


#: Short texts that expand to very large ones.
BOMBS: Final = (
    _bomb(6, 10), _bomb(14, 4), _bomb(40, 2), _bomb(5, 10, '"${domain}"'), _bomb(4, 20, '"${domain}.x"'),
    _bomb(3, 100, '"${var.n}"'), _bomb(4, 9, '"*"'), _bomb(4, 9, "{a: b}"), _ladder(3), _ladder(20), _ladder(60),
)  # fmt: skip
RAW_YAML: Final = (
    *RAW_JSON, "&a x", "*a", "*none", "&a [*a]", "!!python/object/apply:os.system [fuzz_code]",
    "!!binary AAAA", "!!set {a, b}", "!!int x", "!x y", "!!float .nan", ".inf", ".nan", "-.inf",
    "0o17", "0x1F", "1_0", "12:30:45", "? x", "- x", "| x", "> x", "@x", "%x", "`x`",
    "{a: 1, a: 2}", "{<<: {a: 1}, a: 2}", "{<<: [x]}", "{[1]: 2}", "{? a : b}", "{~: 1}", "{1: 2}",
    "{true: 1}", "\n---\na: 1",
    "'it''s'", '"\\x41\\u200b\\0"', '"\\ud800"',
)  # fmt: skip
#: Numbers and words of documents made of bytes.
BYTE_NUMBERS: Final = (
    b"-1", b"-15", b"0", b"1", b"2", b"99", b"4294967296", b"9223372036854775808", b"9" * 30,
    b"1e3", b"0x1", b"+1", b" ", b"", b"\xd9\xa3",
)  # fmt: skip
BYTE_WORDS: Final = (
    b"\r\n", b"\n", b"\r", b" ", b"  ", b"\0", b"\xff", b"@", b".", b">", b"MSG", b"HMSG",
    b"PING\r\n", b"-ERR 'x'\r\n", b"+OK\r\n", b"INFO {}\r\n", b"NATS/1.0", b"NATS/1.0 100\r\n",
    b"NATS/1.0 503\r\n\r\n", b"\xe2\x80\x8b", b"\xed\xa0\x80", b"\x1b[31m", b"{}", b"null", b"[",
    b'"', b"\\u0000", b"," * 50, b"A" * 5000,
)  # fmt: skip
