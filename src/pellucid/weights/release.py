"""Giving back the memory of file pages whose numbers were copied elsewhere."""

import ctypes
import mmap

from torch import Tensor


def release(tensor: Tensor) -> None:
    """Let the system drop the pages that a tensor, mapped from a file and not written to, occupies.

    The tensor stays readable: its pages are read from the file again. Without madvise in the system this does nothing.
    Only whole pages inside the tensor are dropped, so its neighbours keep theirs.
    """
    dontneed = getattr(mmap, "MADV_DONTNEED", None)
    if dontneed is None or not tensor.is_cpu:
        return
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), dontneed)
