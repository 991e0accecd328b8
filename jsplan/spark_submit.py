"""The command line as the script of `spark-submit`, on the Spark that it started."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file: its secrets.py is not the one of Python
    from jsplan.backfill.spark.session import get_submitted_session
    from jsplan.cli.main import main

    session = get_submitted_session()
    try:
        code = main(sys.argv[1:])
    finally:
        session.stop()
    raise SystemExit(code)
