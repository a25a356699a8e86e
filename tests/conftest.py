"""What holds for all tests."""

import signal


def pytest_configure(config):
    """Tests interrupt programs, and a shell starts its background jobs, as a CI's may be, with interrupts ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
