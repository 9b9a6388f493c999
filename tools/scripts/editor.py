"""The program behind the str_replace_editor tool."""

from common import *  # bundled
from editor_files import *  # bundled

VIEW_CHARS = 16000
LINE_CHARS = 2000
DIRECTORY_ENTRIES = 1000
CONTEXT_LINES = 4


# --------------------------------------------------------------------------------------------- view


def numbered(lines, first, encoding, budget=VIEW_CHARS):
    """`cat -n` of `lines` within `budget` characters, and how many of them that were."""
    out = []
    for offset, line in enumerate(lines):
        text = shown(line.rstrip(b"\n"), encoding)
        if text.endswith("\r"):
            text = text[:-1]
        if first + offset == 1 and text.startswith("\ufeff"):
            text = text[1:]
        if len(text) > LINE_CHARS:
            text = "%s [... %d more characters in this line]" % (text[:LINE_CHARS], len(text) - LINE_CHARS)
        row = "%6d\t%s\n" % (first + offset, text)
        if out and len(row) > budget:
            break
        budget -= len(row)
        out.append(row)
    return "".join(out), len(out)


def remarks(data, encoding):
    """What the numbered lines do not show: endings, marks, encodings."""
    notes = []
    windows = data.count(b"\r\n")
    if windows:
        every = windows == data.count(b"\n")
        notes.append("line endings are CRLF" if every else "%d of the line endings are CRLF, the rest LF" % windows)
    if data.startswith(b"\xef\xbb\xbf"):
        notes.append("starts with a byte-order mark")
    if encoding == "latin-1":
        notes.append("encoded in Latin-1")
    else:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            notes.append("bytes that are not UTF-8 are shown as \\xNN")
    if data and not data.endswith(b"\n"):
        notes.append("no newline at the end of the file")
    return "(%s)\n" % "; ".join(notes) if notes else ""


def view(call, path):
    span = call.get("view_range")
    if os.path.isdir(path):
        if span:
            raise Failure("`view_range` cannot be used with a directory.")
        return view_directory(path)
    data, _ = read_file(path)
    lines = split_lines(data)
    first, last, note = check_range(span, len(lines))
    encoding = encoding_of(data)
    body, count = numbered(lines[first - 1 : last], first, encoding)
    if not lines:
        body = "(the file is empty)\n"
    elif count < last - first + 1:
        note += (
            "[Lines %d to %d of %d are shown; the rest was left out to keep this short. Use `view_range`, or find the "
            "line numbers with grep -n.]\n" % (first, first + count - 1, len(lines))
        )
    return "Here's the result of running `cat -n` on %s:\n%s%s%s" % (shown(path), body, note, remarks(data, encoding))


def check_range(span, total):
    """First and last line (from 1) and a note for the model."""
    if not span:
        return 1, total, ""
    if len(span) != 2:
        raise Failure("`view_range` takes two line numbers, as in [11, 20] or [11, -1].")
    first, last = span
    if first < 1 or first > max(total, 1):
        raise Failure("`view_range` starts at line %d, but the file has lines 1 to %d." % (first, total))
    if last == -1:
        return first, total, ""
    if last < first:
        raise Failure("`view_range` ends at line %d, before its start, line %d." % (last, first))
    note = "[The file has %d lines.]\n" % total if last > total else ""
    return first, min(last, total), note


def view_directory(path):
    rows = []
    unread = []

    def walk(folder, depth):
        try:
            with os.scandir(folder) as found:
                entries = sorted((entry for entry in found if not entry.name.startswith(b".")), key=lambda e: e.name)
        except OSError:
            unread.append(folder)
            return
        for entry in entries:
            inner = entry.is_dir(follow_symlinks=False)
            rows.append(entry.path + (b"/" if inner else b""))
            if inner and depth < 2:
                walk(entry.path, depth + 1)

    walk(path, 1)
    if path in unread:
        raise Failure("The directory %s cannot be read." % shown(path))
    top = path.rstrip(b"/") + b"/"
    listed = "".join(shown(row).replace("\n", "\\n") + "\n" for row in [top] + rows[:DIRECTORY_ENTRIES])
    note = ""
    if len(rows) > DIRECTORY_ENTRIES:
        note = "[%d of %d entries are shown; view a subdirectory or use find.]\n" % (DIRECTORY_ENTRIES, len(rows))
    if unread:
        note += "[Not readable: %s]\n" % ", ".join(shown(folder) for folder in unread[:5])
    head = "Here's the files and directories up to 2 levels deep in %s, excluding hidden items:\n" % shown(path)
    return head + listed + note


def snippet(path, data, first, last):
    """The report after an edit of lines `first` to `last`."""
    lines = split_lines(data)
    start = max(1, first - CONTEXT_LINES)
    stop = min(len(lines), last + CONTEXT_LINES)
    body, count = numbered(lines[start - 1 : stop], start, encoding_of(data), VIEW_CHARS // 2)
    if count < stop - start + 1:
        body += "[... up to line %d]\n" % stop
    return (
        "The file %s has been edited. Here's the result of running `cat -n` on a snippet of it:\n%s"
        "Review the changes and make sure they are as expected (correct indentation, no duplicate lines, etc). "
        "Edit the file again if necessary.\n" % (shown(path), body or "(the file is empty)\n")
    )


# --------------------------------------------------------------------------------------------- edits


def create(call, path):
    if os.path.isdir(path) or path.endswith(b"/"):
        raise Failure("%s is a directory; give the path of a file." % shown(path))
    if os.path.exists(path):
        raise Failure(
            "File already exists at %s, and `create` never overwrites. Use `str_replace` or `insert` to change it, or "
            "remove it first with execute_bash." % shown(path)
        )
    data = to_bytes(need(call, "file_text"), "file_text")
    target = os.path.realpath(path)
    made = make_parents(target)
    try:
        remark = commit(target, None, data, made=made)
    except BaseException:
        remove_folders(made)
        raise
    return "File created successfully at: %s\n%s" % (shown(path), remark)


def str_replace(call, path):
    data, info = read_file(path)
    encoding = encoding_of(data)
    old = to_bytes(need(call, "old_str"), "old_str", encoding)
    new = to_bytes(call.get("new_str") or "", "new_str", encoding)
    if not old:
        raise Failure("`old_str` must not be empty. Use `insert` to add text at a line.")
    if old == new:
        raise Failure("No replacement was performed: `old_str` and `new_str` are the same.")
    spans = occurrences(data, old)
    if spans and not halves_an_ending(data, old, spans):
        text = new
        if len(spans) == 1 and b"\n" in new and b"\n" not in old and b"\r" not in old + new:
            text = new.replace(b"\n", nearest_ending(data, *spans[0]))
    else:
        spans = occurrences_any_ending(data, old)
        text = with_endings_of(data[slice(*spans[0])], old, new) if len(spans) == 1 else new
    if not spans:
        raise Failure(not_found(path, data, need(call, "old_str"), encoding))
    if len(spans) > 1:
        numbers = [data.count(b"\n", 0, start) + 1 for start, _ in spans]
        listed = ", ".join(str(number) for number in numbers[:20]) + (", ..." if len(numbers) > 20 else "")
        raise Failure(
            "No replacement was performed: `old_str` occurs %d times in %s, starting at lines %s. Include more of the "
            "surrounding lines to make it unique." % (len(spans), shown(path), listed)
        )
    start, end = spans[0]
    after = data[:start] + text + data[end:]
    if after == data:
        raise Failure("No replacement was performed: the file would not change.")
    remark = commit(os.path.realpath(path), data, after, info)
    first = data.count(b"\n", 0, start) + 1
    return snippet(path, after, first, first + text.count(b"\n")) + remark


def occurrences(data, old):
    """(start, end) of every place where `old` stands, overlapping ones too."""
    spans = []
    at = data.find(old)
    while at >= 0:
        spans.append((at, at + len(old)))
        at = data.find(old, at + 1)
    return spans


def halves_an_ending(data, old, spans):
    """Whether a text that knows no \\r begins at the \\n of a CRLF, which would be torn apart."""
    return old.startswith(b"\n") and b"\r" not in old and any(data[start - 1 : start] == b"\r" for start, _ in spans)


def occurrences_any_ending(data, old):
    """As `occurrences`, with every line ending of `old` standing for both LF and CRLF."""
    if b"\n" not in old:
        return []
    pattern = b"\r?\n".join(re.escape(line) for line in re.split(b"\r?\n", old))
    spans = {}
    for found in re.finditer(b"(?=(%s))" % pattern, data):
        # A leading \r?\n matches with and without its \r: one place, the longer reading.
        spans.setdefault(found.end(1), found.start(1))
    return [(start, end) for end, start in spans.items()]


def with_endings_of(region, old, new):
    """`new` with the line endings of `region`, the text that `old` matched: lines that stay keep their own."""
    endings = re.findall(b"\r?\n", region)
    before = re.split(b"\r?\n", old)
    after = re.split(b"\r?\n", new)
    usual = max(endings, key=endings.count)
    limit = min(len(endings), len(after) - 1)
    head = 0
    while head < limit and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < limit - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle = [usual] * (len(after) - 1 - head - tail)
    kept = endings[:head] + middle + (endings[-tail:] if tail else [])
    return b"".join(line + ending for line, ending in zip(after, kept + [b""]))


def not_found(path, data, old, encoding):
    """Why there was nothing to replace, with the nearest text that there is."""
    message = "No replacement was performed: `old_str` does not occur verbatim in %s." % shown(path)
    if len(data) > 8 << 20:
        return message
    wanted = [line.strip() for line in old.splitlines()]
    have = [shown(line, encoding) for line in split_lines(data)]
    if any(wanted) and all(re.match(r"\s*\d+\t", line) for line in old.splitlines() if line.strip()):
        return message + " It seems to start with the line numbers that `view` prints; leave them out."
    while wanted and not wanted[0]:
        wanted.pop(0)
    while wanted and not wanted[-1]:
        wanted.pop()
    if not wanted:
        return message
    squeezed = [" ".join(line.split()) for line in have]
    target = [" ".join(line.split()) for line in wanted]
    for at in range(len(have) - len(target) + 1):
        if squeezed[at : at + len(target)] == target:
            return "%s The same text with other white space starts at line %d:\n%s" % (
                message,
                at + 1,
                "\n".join(repr(line.rstrip("\r\n"))[1:-1] for line in have[at : at + min(len(target), 20)]),
            )
    rows = nearest_lines(target, squeezed)
    if not rows:
        return message + " Use `view` to see what the file holds now."
    listed = "\n".join("%6d\t%s" % (at + 1, have[at].rstrip("\r\n")[:LINE_CHARS]) for at in rows)
    return "%s The closest lines are:\n%s" % (message, listed)


def nearest_lines(wanted, lines):
    """Indices of up to three lines that resemble the longest wanted line."""
    import difflib

    probe = max(wanted, key=len)[:300]
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(probe)
    scored = []
    for at, line in enumerate(lines[:50000]):
        if not line:
            continue
        matcher.set_seq1(line[:300])
        if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6:
            scored.append((matcher.quick_ratio(), at))
    best = []
    for _, at in sorted(scored, reverse=True)[:50]:
        matcher.set_seq1(lines[at][:300])
        best.append((matcher.ratio(), -at))
    return sorted(-at for ratio, at in sorted(best, reverse=True)[:3] if ratio > 0.6)


def insert(call, path):
    data, info = read_file(path)
    lines = split_lines(data)
    at = need(call, "insert_line")
    if not 0 <= at <= len(lines):
        raise Failure(
            "`insert_line` is %d, but the file has %d lines: give 0 to insert at the start, or the number of the line "
            "to insert after." % (at, len(lines))
        )
    new = to_bytes(need(call, "new_str"), "new_str", encoding_of(data))
    head, tail = b"".join(lines[:at]), b"".join(lines[at:])
    if at == 0 and tail.startswith(b"\xef\xbb\xbf"):
        head, tail = tail[:3], tail[3:]
    ending = nearest_ending(data, len(head), max(len(head) - 1, 0)) if data else b"\n"
    if b"\r" not in new:
        new = new.replace(b"\n", ending)
    unfinished = bool(lines[:at]) and not head.endswith(b"\n")
    if unfinished:
        # After a last line without newline: that line gets one, and the file keeps ending as it did.
        new = ending + new
    elif not new.endswith(b"\n"):
        new += ending
    after = head + new + tail
    remark = commit(os.path.realpath(path), data, after, info)
    added = len(split_lines(new)) - (1 if unfinished else 0)
    return snippet(path, after, at + 1, at + max(added, 1)) + remark


def undo_edit(call, path):
    target = os.path.realpath(path)
    history = History(target)
    name, header, before = history.last()
    info = os.stat(target) if os.path.exists(target) else None
    if info is not None and not stat.S_ISREG(info.st_mode):
        raise Failure("The path %s is not a regular file any more." % shown(path))
    current = None
    if info is not None:
        with open(target, "rb") as file:
            current = file.read()
    note = ""
    if current is None or hashlib.sha256(current).hexdigest() != header["after"]:
        note = "Note: the file had been changed by something else after that edit; that change is gone too.\n"
    if header["existed"]:
        make_parents(target)
        write_file(target, before, info)
        if info is None:
            os.chmod(target, header["mode"])
    elif info is not None:
        os.unlink(target)
    if not header["existed"]:
        remove_folders([folder.encode("latin-1") for folder in header["made"]])
    os.unlink(name)
    left = len(history.steps())
    return undo_report(path, header, current, before) + note + "(Earlier edits left to undo: %d)\n" % left


def undo_report(path, header, current, before):
    head = "Last edit to %s undone successfully." % shown(path)
    if not header["existed"]:
        return head + " The file had been created by that edit and is removed.\n"
    now, then = split_lines(current or b""), split_lines(before)
    same = len(os.path.commonprefix([now, then]))
    back = len(os.path.commonprefix([now[same:][::-1], then[same:][::-1]]))
    start, stop = max(same - CONTEXT_LINES, 0), min(len(then) - back + CONTEXT_LINES, len(then))
    body, _ = numbered(then[start:stop], start + 1, encoding_of(before), VIEW_CHARS // 2)
    return "%s The file is again:\n%s" % (head, body or "(the file is empty)\n")


def remove_folders(folders):
    for folder in reversed(folders):
        try:
            os.rmdir(folder)
        except OSError:
            return  # in use by now


# --------------------------------------------------------------------------------------------- the call

COMMANDS = {"view": view, "create": create, "str_replace": str_replace, "insert": insert, "undo_edit": undo_edit}


def need(call, name):
    value = call.get(name)
    if value is None:
        raise Failure("`%s` needs the parameter `%s`." % (call.get("command"), name))
    return value


def run(call):
    command = COMMANDS.get(call.get("command"))
    if command is None:
        raise Failure("Unknown command %r; use one of %s." % (call.get("command"), ", ".join(COMMANDS)))
    path = to_bytes(need(call, "path"), "path")
    if not path:
        raise Failure("`path` must not be empty.")
    if path.startswith(b"~/"):
        path = os.path.expanduser(path)
    try:
        if not os.path.isabs(path):
            path = os.path.join(os.getcwdb(), re.sub(b"^(\\./+)+", b"", path))
        return command(call, path)
    except OSError as error:
        raise Failure("%s: %s" % (shown(path), error.strerror or error))


if __name__ == "__main__":
    sys.exit(main(run))
