"""Launches a kernel under the name that its library registers, from a program that `emulate` runs."""

# `launch(mangled name, grid, block, arguments)`, each argument a ctypes object.
LAUNCH = """
import ctypes
runtime = ctypes.CDLL(None)
class Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]
stubs = []
def launch(name, grid, block, *arguments):
    stubs.append(ctypes.create_string_buffer(16))
    none = ctypes.c_void_p()
    runtime.__cudaRegisterFunction(none, stubs[-1], name, name, -1, none, none, none, none, none)
    pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    shared, stream = ctypes.c_size_t(0), ctypes.c_void_p()
    assert runtime.cudaLaunchKernel(stubs[-1], Dim3(grid, 1, 1), Dim3(block, 1, 1), pointers, shared, stream) == 0
"""
