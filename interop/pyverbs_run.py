#!/usr/bin/env python3
"""Runs rdma-core's own tests and says how each ended, a line of JSON each.

    pyverbs_run.py RDMA_CORE/tests [unittest's options and names]

The tests are found as their `run_tests.py` finds them; only the report is ours.
"""

import importlib.machinery
import json
import os
import sys
import unittest

folder = os.path.abspath(sys.argv.pop(1))
# What a test prints does not mix with the report.
report = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
sys.path.insert(0, folder)

from args_parser import parser  # noqa: E402 (of rdma-core's tests)


def tell(test, how, why=""):
    lines = [line for line in str(why).strip().splitlines() if line.strip()]
    line = {"test": test.id(), "how": how, "why": lines[-1].strip() if lines else ""}
    print(json.dumps(line), file=report)


class Result(unittest.TextTestResult):
    """Tells each end of a test."""

    def addSuccess(self, test):
        super().addSuccess(test)
        tell(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        tell(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        tell(test, "failed", err[1])

    def addError(self, test, err):
        super().addError(test, err)
        tell(test, "failed", err[1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            tell(subtest, "failed", err[1])


class Runner(unittest.TextTestRunner):
    resultclass = Result


init = os.path.join(folder, "__init__.py")
tests = importlib.machinery.SourceFileLoader("tests", init).load_module()
parser.parse_args()
unittest.main(module=tests, testRunner=Runner)
