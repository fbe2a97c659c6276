/* What torch itself tells of a tensor, without the detour over most of its methods. Older versions of torch do not: then
   `find_view` says so, and native.py asks the tensor. */

/* DLTensor and DLPackExchangeAPI of DLPack 1.x, as https://dmlc.github.io/dlpack/latest/c_api.html has them. */
typedef struct {
    char *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int64_t *shape, *stride;
    uint64_t offset; /* torch leaves it 0 */
} View;

typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *previous;
    void *allocate, *export, *import;
    int (*view)(void *tensor, View *view); /* -1 and an exception if there is nothing to view */
    void *stream;
} Exchange;

enum { ON_CPU = 1, IS_FLOAT = 2, IS_BFLOAT = 4 }; /* as in DLPack */

static int (*view_of)(void *, View *);
static PyObject *tensor_type, *parameter_type, *untyped_storage, *nbytes, *storage_offset, *is_neg;

/* find_view(torch.Tensor, torch.nn.Parameter): whether views can be had from now on. */
static PyObject *find_view(PyObject *module, PyObject *args)
{
    PyObject *tensor, *parameter;
    if (!PyArg_ParseTuple(args, "OO", &tensor, &parameter))
        return NULL;
    PyObject *capsule = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
    const Exchange *exchange = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule);
    PyErr_Clear();
    if (!exchange || exchange->version.major != 1 || !exchange->view)
        Py_RETURN_FALSE;
    Py_INCREF(tensor); /* for as long as the process lives */
    Py_INCREF(parameter);
    tensor_type = tensor;
    parameter_type = parameter;
    untyped_storage = PyUnicode_InternFromString("untyped_storage");
    nbytes = PyUnicode_InternFromString("nbytes");
    storage_offset = PyUnicode_InternFromString("storage_offset");
    is_neg = PyUnicode_InternFromString("is_neg");
    view_of = exchange->view;
    Py_RETURN_TRUE;
}

/* The number that a method of the object returns; -1 if it fails. */
static Py_ssize_t asked(PyObject *object, PyObject *method)
{
    PyObject *found = PyObject_CallMethodObjArgs(object, method, NULL);
    Py_ssize_t number = found ? PyNumber_AsSsize_t(found, NULL) : -1;
    Py_XDECREF(found);
    return number;
}

/* How many values lie between the first and the last, both included. */
static int64_t reach_of(const View *view)
{
    int64_t reach = 1;
    for (int k = 0; k < view->ndim; k++) {
        if (!view->shape[k])
            return 0;
        reach += (view->shape[k] - 1) * view->stride[k];
    }
    return reach;
}

/* 0 where torch has said that there is nothing to read; -1 and the exception where it is another one, such as an
   interrupt: under a mode of the user's, methods of a tensor run Python. */
static int refused(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_BufferError))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Views a tensor of torch's own in memory that is there; returns 0 for any other, -1 with an exception. */
static int look_at(PyObject *tensor, View *view)
{
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    if (!view_of || (type != tensor_type && type != parameter_type) || view_of(tensor, view) ||
        view->device.type != ON_CPU || view->type.lanes != 1 || !view->data)
        return refused();
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, untyped_storage, NULL);
    Py_ssize_t bytes = storage ? asked(storage, nbytes) : -1;
    Py_ssize_t offset = bytes < 0 ? -1 : asked(tensor, storage_offset);
    Py_XDECREF(storage);
    if (offset < 0)
        return refused();
    return (offset + reach_of(view)) * (view->type.bits / 8) <= bytes;
}

/* Whether the bits of the exponent, which are those of the mask, are all set in any value: it is infinite or NaN. */
#define ANY_NONFINITE(type, mask)                                                                                      \
    for (int64_t i = 0; i < count; i++) {                                                                              \
        type bits;                                                                                                     \
        memcpy(&bits, data + i * apart * (int64_t)sizeof bits, sizeof bits);                                           \
        found |= (bits & (type)(mask)) == (type)(mask);                                                                \
    }                                                                                                                  \
    return found;

FOR_EACH_PROCESSOR static int any_nonfinite(const char *data, int64_t count, int64_t apart, int code, int bits)
{
    int found = 0;
    if (code == IS_BFLOAT) {
        ANY_NONFINITE(uint16_t, 0x7F80)
    } else if (bits == 16) {
        ANY_NONFINITE(uint16_t, 0x7C00)
    } else if (bits == 32) {
        ANY_NONFINITE(uint32_t, 0x7F800000)
    } else {
        ANY_NONFINITE(uint64_t, 0x7FF0000000000000)
    }
}

/* 1 if all values that are looked at are finite: all, or those of the first column; 0 too where that cannot be told. */
static int is_finite(PyObject *tensor, int is_column)
{
    View view;
    int is_there = look_at(tensor, &view);
    if (is_there != 1)
        return is_there;
    int is_float = view.type.code == IS_FLOAT && view.type.bits >= 16 && view.type.bits <= 64;
    if (!is_float && !(view.type.code == IS_BFLOAT && view.type.bits == 16))
        return 0;
    int64_t values = 1, apart = 1;
    for (int d = 0; d < view.ndim; d++)
        values *= view.shape[d];
    if (is_column && view.ndim) {
        values = view.shape[0];
        apart = view.stride[0];
    } else if (reach_of(&view) != values) {
        return 0;
    }
    return !any_nonfinite(view.data, values, apart, view.type.code, view.type.bits);
}

/* are_finite([tensor, ...], [tensor, ...]): whether all values of the first and the first column of each of the second
   are finite; False too where that cannot be told here. */
static PyObject *are_finite(PyObject *module, PyObject *args)
{
    PyObject *lists[2];
    if (!PyArg_ParseTuple(args, "OO", lists, lists + 1))
        return NULL;
    int found = 1;
    for (int k = 0; k < 2; k++) {
        Py_ssize_t count = PyList_Size(lists[k]);
        for (Py_ssize_t i = 0; i < count && found == 1; i++)
            found = is_finite(PyList_GetItem(lists[k], i), k);
    }
    return found < 0 ? NULL : PyBool_FromLong(found);
}

/* Whether the tensor is one of torch's own in memory that is there, and of the type, shape and stride of which the key
   holds the numbers; -1 with an exception. It is viewed. */
static int is_as(PyObject *tensor, const char *key, Py_ssize_t size, View *view)
{
    int is_there = look_at(tensor, view);
    if (is_there != 1)
        return is_there;
    int64_t type[] = {view->type.code, view->type.bits};
    size_t dims = (size_t)view->ndim * sizeof *view->shape;
    int is_alike = (size_t)size == sizeof type + 2 * dims && !memcmp(key, type, sizeof type) &&
                   (!dims || (!memcmp(key + sizeof type, view->shape, dims) &&
                              !memcmp(key + sizeof type + dims, view->stride, dims)));
    Py_ssize_t is_negated = is_alike ? asked(tensor, is_neg) : 1;
    return is_negated < 0 ? refused() : is_negated == 0;
}

static PyObject *is_like(PyObject *module, PyObject *args)
{
    PyObject *tensor;
    const char *key;
    Py_ssize_t size;
    View view;
    if (!PyArg_ParseTuple(args, "Oy#", &tensor, &key, &size))
        return NULL;
    int found = is_as(tensor, key, size, &view);
    return found < 0 ? NULL : PyBool_FromLong(found);
}
