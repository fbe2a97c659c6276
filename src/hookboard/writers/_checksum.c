/* CRC-32C, the checksum of TensorBoard's records, which TensorBoard computes byte by byte in Python. Optional: without
   it TensorBoard's own is used. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78u /* Castagnoli's, with its bits reversed */

static uint32_t table[256];

/* Processors of Intel and AMD have an instruction for this very checksum, which takes eight bytes at once. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_INSTRUCTION
__attribute__((target("sse4.2"))) static uint32_t add_eights(uint32_t crc, const char *data, Py_ssize_t eights)
{
    for (Py_ssize_t i = 0; i < eights; i++) {
        uint64_t bytes;
        memcpy(&bytes, data + 8 * i, sizeof bytes);
        crc = (uint32_t)__builtin_ia32_crc32di(crc, bytes);
    }
    return crc;
}
#endif

static PyObject *crc32c(PyObject *module, PyObject *args)
{
    const char *data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &data, &size))
        return NULL;
    uint32_t crc = 0xFFFFFFFFu;
    Py_ssize_t done = 0;
#ifdef HAS_INSTRUCTION
    if (__builtin_cpu_supports("sse4.2")) {
        done = size / 8 * 8;
        crc = add_eights(crc, data, size / 8);
    }
#endif
    for (Py_ssize_t i = done; i < size; i++)
        crc = table[(crc ^ (uint8_t)data[i]) & 0xFF] ^ (crc >> 8);
    return PyLong_FromUnsignedLong(crc ^ 0xFFFFFFFFu);
}

static PyMethodDef methods[] = {
    {"crc32c", crc32c, METH_VARARGS, "crc32c(data): the CRC-32C of some bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_checksum", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__checksum(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        table[byte] = crc;
    }
    return PyModule_Create(&definition);
}
