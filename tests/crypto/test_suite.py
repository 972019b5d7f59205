"""Suites: the default one keeps the contract, and so do others."""

from dordis.crypto import agreement, cipher, prg, sharing, signature
from dordis.crypto.suite import DEFAULT, Suite
from tests.contracts.suite import SuiteContract
from tests.crypto.suites import CHACHA, TWISTED


class TestDefault(SuiteContract):
    suite = DEFAULT

    def test_it_is_the_modules_of_this_package(self):
        assert Suite(agreement, cipher, sharing, prg, signature) == DEFAULT


class TestAnotherCipher(SuiteContract):
    suite = CHACHA


class TestAllElse(SuiteContract):
    suite = TWISTED
