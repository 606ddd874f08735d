import doctest

import pytest

from pipefit.errors import StoreError
from pipefit.store import codec, plain


@pytest.mark.parametrize("module", [codec, plain])
def test_the_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_dtype_of_a_later_version_is_named():
    with pytest.raises(StoreError, match="dtype F4 cannot be read: known are BOOL"):
        codec.dtype_of("F4")
