/* CRC-32C, the checksum of TensorBoard's records, which TensorBoard computes byte by byte in Python. Optional: without
   it TensorBoard's own is used. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define POLYNOMIAL 0x82F63B78u /* Castagnoli's, with its bits reversed */

static uint32_t table[256];

static PyObject *crc32c(PyObject *module, PyObject *args)
{
    const char *data;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &data, &size))
        return NULL;
    uint32_t crc = 0xFFFFFFFFu;
    for (Py_ssize_t i = 0; i < size; i++)
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
