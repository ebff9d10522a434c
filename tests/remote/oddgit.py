"""The oddest history that git takes, as a `git fast-import` stream."""

from __future__ import annotations

SIGNATURE = b"gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQEzBAABCAAdFiEE\n =abcd\n -----END PGP SIGNATURE-----\n"


def odd_stream() -> bytes:
    """Gives a fast-import stream: merges, an octopus, odd names, modes, encodings, an empty commit, a submodule."""
    parts: list[bytes] = []
    count = 0

    def commit(branch: bytes, message: bytes, body: bytes, extra: bytes = b"") -> None:
        nonlocal count
        count += 1
        who = b"J\xc3\xb6rg <j@example.org> %d -0830" % (1_600_000_000 + count)
        parts.append(
            b"commit refs/heads/%s\nmark :%d\nauthor %s\ncommitter %s\n%sdata %d\n%s\n%s\n"
            % (branch, count, who, who, extra, len(message), message, body)
        )

    def put(path: bytes, data: bytes, mode: bytes = b"100644") -> bytes:
        quoted = b'"' + b"".join(b"\\%03o" % c for c in path) + b'"'
        return b"M %s inline %s\ndata %d\n%s\n" % (mode, quoted, len(data), data)

    commit(b"main", b"first", put(b"a.txt", b"one\ntwo\n") + put(b"crlf.txt", b"x\r\ny\r\n"))
    commit(
        b"main", b"names", put(b"\xff\xfe.bin", b"\0\xff") + put(b"dir/\xe9t\xe9", b"latin") + put(b"a b\tc\n", b"!")
    )
    commit(b"main", b"modes", put(b"run.sh", b"#!/bin/sh\n", b"100755") + put(b"link", b"../a.txt", b"120000"))
    commit(b"main", b"submodule", b"M 160000 1234567890123456789012345678901234567890 sub\n")
    commit(b"main", b"nothing at all", b"")
    commit(b"main", b"gr\xfc\xdfe", put(b"a.txt", b"eins\nzwei\n"), b"encoding ISO-8859-1\n")
    for side in (b"x", b"y", b"z"):
        commit(side, b"side " + side, b"from :5\n" + put(b"side-" + side, side))
    tops = b"from :6\nmerge :7\nmerge :8\nmerge :9\n"
    commit(b"main", b"octopus", tops + b"".join(put(b"side-" + s, s) for s in (b"x", b"y", b"z")))
    commit(b"main", b"no line end", put(b"big", bytes(range(256)) * 5000))
    parts.append(b"tag v1\nfrom :6\ntagger T <t@example.org> 1600000000 +0000\ndata 3\none\n")
    return b"".join(parts)
