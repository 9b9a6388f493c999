#!/bin/sh
''':'
# This part is read by sh, the rest by Python, to which these lines are one string. The system's Python comes first:
# the one on the PATH may belong to the project under work, be older than 3.6, or be half installed. -I -S keeps the
# project's modules and site hooks out, -W ignore keeps warnings out of what the model reads. A Python that cannot run the program says so with 97 before it reads any input.
for python in "${UNI_AGENT_PYTHON:-}" /usr/bin/python3 /usr/local/bin/python3 python3 /opt/miniconda3/bin/python3; do
    [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 || continue
    "$python" -I -S -W ignore "$0" "$@"
    code=$?
    case $code in
        97 | 126 | 127) ;;
        *) exit $code ;;
    esac
done
echo "${0##*/}: no Python 3.6 or newer in this sandbox; install python3 in its image or set UNI_AGENT_PYTHON" >&2
exit 127
'''
