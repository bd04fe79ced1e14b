#!/usr/bin/env python3
"""Runs rdma-core's own tests, and writes how each ended into a file, a line of JSON each.

    pyverbs_run.py RDMA_CORE/tests REPORT [options of rdma-core's and of unittest's]

The tests are found as their `run_tests.py` finds them; only the report is ours.
"""

import importlib
import importlib.machinery
import ipaddress
import json
import os
import sys
import unittest

# What is not run, and why.
LEFT_OUT = {
    "tests.test_device.DMTest.test_multi_process_alloc_dm":
        "a fork's child has no device: queues and engine are its parent's",
}

folder = os.path.abspath(sys.argv.pop(1))
report = open(sys.argv.pop(1), "w", buffering=1)
sys.path.insert(0, folder)

from args_parser import parser  # noqa: E402 (of rdma-core's tests)


def tell(test, how, why=""):
    lines = [line for line in str(why).splitlines() if line.strip()]
    line = {"test": test.id(), "how": how, "why": lines[-1].strip() if lines else ""}
    print(json.dumps(line), file=report)


def address(case, dev, port, index):
    """An address for connections: the device's own, by its GID. The tests look for that of a network interface below
    the device, and here there is none."""
    with open(f"/sys/class/infiniband/{dev}/ports/{port}/gids/{index or 0}") as gid:
        own = ipaddress.IPv6Address(gid.read().strip())
    case.args.append([dev, port, index, str(own.ipv4_mapped or own), None])


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
for name, why in LEFT_OUT.items():
    module, case, method = name.rsplit(".", 2)
    function = getattr(getattr(importlib.import_module(module), case), method)
    function.__unittest_skip__, function.__unittest_skip_why__ = True, why
importlib.import_module("tests.base").RDMATestCase._get_ip_mac = address
parser.parse_args()
unittest.main(module=tests, testRunner=Runner)
