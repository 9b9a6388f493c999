"""Files as the editor sees them: exact bytes in, exact bytes out, with every earlier state kept for undo.

What an edit does not name is never decoded, so tabs, line endings, byte-order marks and foreign encodings survive.
"""

from common import *  # bundled

try:
    import errno
    import hashlib
    import json
    import os
    import re
    import stat
except ImportError:
    sys.exit(97)

FILE_BYTES = 64 << 20
UNDO_STEPS = 100
UNDO_BYTES = 64 << 20


# --------------------------------------------------------------------------------------------- text and bytes


def shown(raw, encoding="utf-8"):
    """Bytes as text for people; what does not decode becomes `\\xNN`."""
    return escaped(raw.decode(encoding, "surrogateescape"))


def encoding_of(data):
    """`utf-8`, or `latin-1` for a file that can only be that; mixed files count as UTF-8 with stray bytes."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        stray = re.search(b"[\x80-\x9f]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}", data)
        return "utf-8" if stray else "latin-1"
    return "utf-8"


def to_bytes(text, name, encoding="utf-8"):
    if "\0" in text:
        raise Failure("`%s` contains a NUL character; text files cannot hold one." % name)
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        bad = error.object[error.start]
        if encoding == "latin-1":
            raise Failure(
                "The file is encoded in Latin-1 (ISO-8859-1), which has no %r (in `%s`). Use other characters, or "
                "convert the file first (iconv, with execute_bash)." % (bad, name)
            )
        raise Failure("`%s` contains %r, which is half of a surrogate pair and no character." % (name, bad))


def split_lines(data):
    """Lines with their endings; only \\n ends a line, as for `cat -n` and `sed`."""
    return re.findall(b"[^\n]*\n|[^\n]+", data)


def nearest_ending(data, start, end):
    """The line ending in use where data[start:end] stands: of its own last line, else of the line before."""
    at = data.find(b"\n", end)
    if at < 0:
        at = data.rfind(b"\n", 0, start)
    return b"\r\n" if at > 0 and data[at - 1 : at] == b"\r" else b"\n"


# --------------------------------------------------------------------------------------------- files


def read_file(path):
    """The bytes of a text file and its stat."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        raise Failure("The path %s does not exist.%s" % (shown(path), similar_names(path)))
    if stat.S_ISDIR(info.st_mode):
        raise Failure("The path %s is a directory; only `view` works on directories." % shown(path))
    if not stat.S_ISREG(info.st_mode):
        raise Failure("The path %s is not a regular file." % shown(path))
    if info.st_size > FILE_BYTES:
        raise Failure(
            "The file %s has %d bytes, too many for this editor; use execute_bash (sed -n, grep -n) instead."
            % (shown(path), info.st_size)
        )
    with open(path, "rb") as file:
        data = file.read()
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data:
        kind = "encoded in UTF-16 or UTF-32" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "a binary file"
        raise Failure(
            "The file %s is %s (%d bytes); this editor handles text only. Use execute_bash (file, xxd, iconv) instead."
            % (shown(path), kind, len(data))
        )
    return data, info


def similar_names(path):
    import difflib  # only needed when something went wrong

    parent, name = os.path.split(path)
    try:
        names = [shown(entry) for entry in os.listdir(parent)]
    except OSError:
        return ""
    close = difflib.get_close_matches(shown(name), names, 3, 0.6)
    return " Did you mean %s?" % " or ".join(os.path.join(shown(parent), entry) for entry in close) if close else ""


def write_file(path, data, info=None):
    """Replace the file at a resolved path as one step; `info` is the stat of the file that is replaced, if any."""
    if info is not None and not os.access(path, os.W_OK):
        raise Failure("The file %s is not writable." % shown(path))
    # A second hard link would be cut off by a rename, so such a file is written in place.
    if info is not None and info.st_nlink > 1:
        return write_in_place(path, data)
    parent = os.path.dirname(path)
    try:
        temporary = os.path.join(parent, b".uni_agent-" + os.urandom(8).hex().encode())
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if info is None or error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
            raise
        return write_in_place(path, data)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            dress(file.fileno(), path, info)
        os.rename(temporary, path)
        temporary = None
    except OSError as error:
        # Another owner or a mount point forbids replacing, not writing; a full disk has to leave the old file alone.
        if info is None or error.errno not in (errno.EPERM, errno.EACCES, errno.EBUSY, errno.EXDEV):
            raise
        return write_in_place(path, data)
    finally:
        if temporary is not None:
            os.unlink(temporary)


def write_in_place(path, data):
    with open(path, "rb+") as file:
        file.write(data)
        file.truncate()


def dress(handle, path, info):
    """Give a new file the owner, extended attributes and mode of the one it replaces, or what the umask says."""
    if info is None:
        umask = os.umask(0)
        os.umask(umask)
        return os.fchmod(handle, 0o666 & ~umask)
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (info.st_uid, info.st_gid):
        os.fchown(handle, info.st_uid, info.st_gid)
    if hasattr(os, "listxattr"):
        try:
            for name in os.listxattr(path):
                os.setxattr(handle, name, os.getxattr(path, name))
        except OSError:
            pass  # a file system without attributes, or one that is not ours to set: the content matters more
    os.fchmod(handle, stat.S_IMODE(info.st_mode))


def make_parents(path):
    """Make the missing folders above `path`; returns those made, outermost first."""
    missing = []
    parent = os.path.dirname(path)
    while not os.path.isdir(parent):
        if os.path.lexists(parent):
            raise Failure("%s is not a directory, so %s cannot be created." % (shown(parent), shown(path)))
        missing.append(parent)
        parent = os.path.dirname(parent)
    missing.reverse()
    for folder in missing:
        os.mkdir(folder)
    return missing


# --------------------------------------------------------------------------------------------- undo


HEADER = {"existed": True, "mode": 0o644, "after": "", "made": []}


class History:
    """The earlier states of one file, oldest first, one file each, kept out of the project's tree."""

    def __init__(self, path):
        self.path = path
        self.folder = os.path.join(state_folder(), b"edits", hashlib.sha256(path).hexdigest()[:32].encode())

    def steps(self):
        try:
            return sorted(name for name in os.listdir(self.folder) if name.isdigit())
        except FileNotFoundError:
            return []

    def push(self, before, mode, after, made=()):
        """Record the state before an edit (None: no file) and a digest of the state after it; returns a handle."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        steps = self.steps()
        self.prune(steps)
        name = os.path.join(self.folder, b"%012d" % (int(steps[-1]) + 1 if steps else 0))
        header = {
            "path": self.path.decode("latin-1"),
            "existed": before is not None,
            "mode": mode,
            "after": hashlib.sha256(after).hexdigest(),
            "made": [folder.decode("latin-1") for folder in made],
        }
        temporary = name + b".tmp"
        with open(temporary, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n" + (before or b""))
        os.rename(temporary, name)
        return name

    def prune(self, steps):
        names = [os.path.join(self.folder, name) for name in steps]
        total = sum(os.path.getsize(name) for name in names)
        while names and (len(names) >= UNDO_STEPS or total > UNDO_BYTES):
            total -= os.path.getsize(names[0])
            os.unlink(names.pop(0))

    def last(self):
        """(handle, header, bytes) of the newest step."""
        steps = self.steps()
        if not steps:
            raise Failure("No edit history was found for %s." % shown(self.path))
        name = os.path.join(self.folder, steps[-1])
        with open(name, "rb") as file:
            try:
                header = json.loads(file.readline().decode())
                return name, dict(HEADER, **header), file.read()
            except (TypeError, ValueError):
                raise Failure("The edit history of %s is damaged." % shown(self.path))


def state_folder():
    """The first folder that can be written: the configured one, the home folder's, the temporary folder's."""
    configured = os.environb.get(b"UNI_AGENT_STATE_DIR")
    home = os.path.expanduser(b"~/.uni_agent")
    spare = os.path.join(os.environb.get(b"TMPDIR") or b"/tmp", b".uni_agent-%d" % os.geteuid())
    for folder in (configured, home, spare):
        if not folder or not os.path.isabs(folder):
            continue
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            ignore = os.path.join(folder, b".gitignore")
            if not os.path.exists(ignore):
                # Should the folder lie in a repository after all, git must not see it.
                with open(ignore, "wb") as file:
                    file.write(b"*\n")
        except OSError:
            continue
        # In a temporary folder that all share, another user may have been first.
        if os.access(folder, os.W_OK | os.X_OK) and (folder != spare or os.stat(folder).st_uid == os.geteuid()):
            return folder
    raise OSError("no folder for undo history is writable")


def commit(path, before, after, info=None, made=()):
    """Write `after` with its undo step; returns a remark about undo, usually empty."""
    mode = stat.S_IMODE(info.st_mode) if info is not None else 0
    try:
        step = History(path).push(before, mode, after, made)
        remark = ""
    except OSError as error:
        step = None
        remark = "Note: undo_edit will not be able to take this edit back (%s).\n" % error
    try:
        write_file(path, after, info)
    except BaseException:
        if step is not None:
            os.unlink(step)
        raise
    return remark
