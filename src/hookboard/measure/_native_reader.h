/* Reader: what hooks call with each tensor of one site. One that is like the last is read without a line of Python, any
   other goes to `otherwise`. */

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *otherwise; /* called with a tensor that is not read here */
    PyObject *on_fault;  /* called with an exception */
    PyObject *index;     /* of the site */
    PyObject *rows;      /* a list, which gets (index, row, rows of the channels or None) */
    PyObject *counts;    /* a tensor, int64, which the bins of the values are added to; None for no bins */
    PyObject *lock;      /* is held while bins are added, until their row is in `rows`; not asked without bins */
    PyObject *clock;     /* its `spent` grows by the seconds of each call, unless it has `began`; None for no clock */
    PyObject *form;      /* of the tensors that are read here: a Form as bytes, which never change; None for none */
    Py_ssize_t room;     /* how long `rows` may get here */
    Py_ssize_t calls;    /* how many tensors with channels were read since somebody set it to 0 */
    Py_ssize_t most;     /* of them */
} Reader;

/* How tensors of one type, shape and stride are read. One object, so that no other thread sees a half of it changed. */
typedef struct {
    Job job;
    int with_abs_sum;
    int64_t key[]; /* see is_like */
} Form;

static Form *form_in(PyObject *bytes)
{
    return (Form *)PyBytes_AsString(bytes);
}

static Py_ssize_t key_size(PyObject *bytes)
{
    return PyBytes_Size(bytes) - (Py_ssize_t)offsetof(Form, key);
}

enum { FIELDS = 8 };

static PyObject **fields_of(Reader *self)
{
    return &self->otherwise; /* and those behind it */
}

static PyObject *get_num_threads, *perf_counter;
static PyObject *began, *spent, *acquire, *release;

/* set_up(torch.get_num_threads, time.perf_counter): before the first reader is called. */
static PyObject *set_up(PyObject *module, PyObject *args)
{
    PyObject *given[2];
    if (!PyArg_ParseTuple(args, "OO", given, given + 1))
        return NULL;
    for (int k = 0; k < 2; k++)
        Py_INCREF(given[k]); /* for as long as the process lives */
    get_num_threads = given[0];
    perf_counter = given[1];
    began = PyUnicode_InternFromString("began");
    spent = PyUnicode_InternFromString("spent");
    acquire = PyUnicode_InternFromString("acquire");
    release = PyUnicode_InternFromString("release");
    Py_RETURN_NONE;
}

/* The float that a function or attribute gives, and NULL in its place if there is none. */
static double taken(PyObject **number)
{
    double value = *number ? PyFloat_AsDouble(*number) : -1;
    Py_CLEAR(*number);
    return value;
}

/* 1 and the time, if it is to be taken; 0 if there is no clock, or what is around this call is timed; -1: exception. */
static int start_of(PyObject *clock, double *start)
{
    if (clock == Py_None)
        return 0;
    PyObject *since = PyObject_GetAttr(clock, began), *now = NULL;
    int is_timed = since == Py_None;
    Py_XDECREF(since);
    if (!since || (is_timed && !(now = PyObject_CallNoArgs(perf_counter))))
        return -1;
    *start = is_timed ? taken(&now) : 0;
    return is_timed;
}

static int add_time_since(double start, PyObject *clock)
{
    PyObject *now = PyObject_CallNoArgs(perf_counter), *sum = now ? PyObject_GetAttr(clock, spent) : NULL;
    if (sum) {
        double seconds = taken(&now) - start + taken(&sum);
        sum = PyFloat_FromDouble(seconds);
    }
    int status = sum ? PyObject_SetAttr(clock, spent, sum) : -1;
    Py_XDECREF(now);
    Py_XDECREF(sum);
    return status;
}

/* Where the rows of the channels go, a bytearray; None without channels. NULL with an exception. */
static PyObject *memory_for(Job *job)
{
    if (!job->channels) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(job->channels * sizeof EMPTY));
    job->rows = memory ? (double (*)[WIDTH])PyByteArray_AsString(memory) : NULL;
    return memory;
}

/* Takes over the memory; returns -1 with an exception. */
static int append_row(Reader *self, const double *row, PyObject *memory)
{
    self->calls += memory != Py_None;
    PyObject *found = Py_BuildValue("Oy#N", self->index, (const char *)row, (Py_ssize_t)sizeof EMPTY, memory);
    int status = found ? PyList_Append(self->rows, found) : -1;
    Py_XDECREF(found);
    return status;
}

/* -1 with an exception. */
static int threads_now(void)
{
    PyObject *number = PyObject_CallNoArgs(get_num_threads);
    int threads = number ? (int)PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return threads;
}

/* Whether the tensor is read here; -1 with an exception. Then the job is that of the form, with the tensor's address.
   Whoever calls it holds the form: torch lets other threads run while it is asked. */
static int take_job(const Reader *self, PyObject *tensor, PyObject *form, Job *job)
{
    View view;
    if (form == Py_None || PyList_Size(self->rows) >= self->room)
        return 0;
    *job = form_in(form)->job;
    if (job->channels && self->calls >= self->most)
        return 0;
    int is_alike = is_as(tensor, (const char *)form_in(form)->key, key_size(form), &view);
    if (is_alike == 1)
        job->x = view.data;
    return is_alike;
}

/* Calls a method of a lock, past an exception; 0 if it fails. */
static int call_lock(PyObject *lock, PyObject *method)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *status = PyObject_CallMethodObjArgs(lock, method, NULL);
    Py_XDECREF(status);
    if (status)
        PyErr_Restore(type, error, trace);
    return status != NULL;
}

/* Does the job and appends its row; takes over the memory. -1 with an exception. */
static int keep_row(Reader *self, Job *job, int with_abs_sum, PyObject *counts, int threads, PyObject *memory)
{
    View view;
    int is_done = counts == Py_None || !view_of(counts, &view);
    is_done = is_done && do_jobs(job, 1, with_abs_sum, counts == Py_None ? NULL : (int64_t *)view.data, threads);
    if (is_done)
        return append_row(self, job->row, memory);
    Py_DECREF(memory);
    return -1;
}

/* The same with bins: nobody who holds the lock finds them without the row. */
static int keep_row_and_bins(Reader *self, Job *job, int with_abs_sum, int threads, PyObject *memory)
{
    PyObject *lock = self->lock;
    Py_INCREF(lock);
    if (!call_lock(lock, acquire)) {
        Py_DECREF(lock);
        Py_DECREF(memory);
        return -1;
    }
    PyObject *counts = self->counts; /* others since it was asked first, if a flush came between */
    Py_INCREF(counts);
    int status = keep_row(self, job, with_abs_sum, counts, threads, memory);
    Py_DECREF(counts);
    status = call_lock(lock, release) ? status : -1;
    Py_DECREF(lock);
    return status;
}

/* 1 if the tensor was read; 0 if it was not, and nothing has changed; -1 with an exception. */
static int read_tensor(Reader *self, PyObject *tensor, PyObject *form)
{
    double row[WIDTH];
    Job job;
    int is_alike = take_job(self, tensor, form, &job), threads = is_alike == 1 ? threads_now() : 0;
    if (is_alike != 1 || threads < 0)
        return threads < 0 ? -1 : is_alike;
    PyObject *memory = memory_for(&job);
    job.row = row;
    if (!memory)
        return -1;
    int with_abs_sum = form_in(form)->with_abs_sum;
    int status = self->counts == Py_None ? keep_row(self, &job, with_abs_sum, Py_None, threads, memory)
                                         : keep_row_and_bins(self, &job, with_abs_sum, threads, memory);
    return status ? -1 : 1;
}

/* Hands the exception over, if it is no interrupt. */
static PyObject *hand_over(PyObject *on_fault)
{
    PyObject *type, *error, *trace, *result;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    result = PyObject_CallFunctionObjArgs(on_fault, error, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

static PyObject *call_reader(PyObject *object, PyObject *args, PyObject *named)
{
    Reader *self = (Reader *)object;
    PyObject *tensor, *result = Py_None;
    double start = 0;
    if (!PyArg_ParseTuple(args, "O", &tensor))
        return NULL;
    PyObject *clock = self->clock, *form = self->form;
    Py_INCREF(clock); /* another thread may change them while the values are read */
    Py_INCREF(form);
    int is_timed = start_of(clock, &start), is_read = is_timed < 0 ? -1 : 0;
    if (!is_read)
        is_read = read_tensor(self, tensor, form);
    Py_INCREF(result);
    if (is_read != 1) {
        Py_DECREF(result);
        result = is_read ? hand_over(self->on_fault) : PyObject_CallFunctionObjArgs(self->otherwise, tensor, NULL);
    }
    if (result && is_timed == 1 && add_time_since(start, clock))
        Py_CLEAR(result);
    Py_DECREF(clock);
    Py_DECREF(form);
    return result;
}

/* read_as(key, (type, outer, channels, inner, apart), with_abs_mean): from now on tensors like this are read here. */
static PyObject *read_as(PyObject *object, PyObject *args)
{
    Reader *self = (Reader *)object;
    const char *key;
    Py_ssize_t size, outer, channels, inner, apart;
    int type, with_abs_sum;
    if (!PyArg_ParseTuple(args, "y#(innnn)p", &key, &size, &type, &outer, &channels, &inner, &apart, &with_abs_sum))
        return NULL;
    PyObject *form = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)offsetof(Form, key) + size), *old = self->form;
    if (!form)
        return NULL;
    form_in(form)->job = (Job){.type = type, .outer = (size_t)outer, .channels = (size_t)channels,
                               .inner = (size_t)inner, .apart = (size_t)apart};
    form_in(form)->with_abs_sum = with_abs_sum;
    memcpy(form_in(form)->key, key, (size_t)size);
    self->form = form;
    Py_DECREF(old);
    Py_RETURN_NONE;
}

/* read_nothing(): from now on every tensor goes to `otherwise`. */
static PyObject *read_nothing(PyObject *object, PyObject *unused)
{
    Reader *self = (Reader *)object;
    PyObject *old = self->form;
    Py_INCREF(Py_None);
    self->form = Py_None;
    Py_DECREF(old);
    Py_RETURN_NONE;
}

static PyObject *new_reader(PyTypeObject *type, PyObject *args, PyObject *named)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *object = allocate(type, 0);
    for (int k = 0; object && k < FIELDS; k++) {
        Py_INCREF(Py_None);
        fields_of((Reader *)object)[k] = Py_None;
    }
    return object;
}

static int traverse_reader(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (int k = 0; k < FIELDS; k++)
        Py_VISIT(fields_of((Reader *)object)[k]);
    return 0;
}

static int clear_reader(PyObject *object)
{
    for (int k = 0; k < FIELDS; k++) {
        PyObject *old = fields_of((Reader *)object)[k];
        Py_INCREF(Py_None);
        fields_of((Reader *)object)[k] = Py_None;
        Py_XDECREF(old);
    }
    return 0;
}

static void free_reader(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (int k = 0; k < FIELDS; k++)
        Py_CLEAR(fields_of((Reader *)object)[k]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Whether the values at `minus` may be subtracted, see can_subtract in native.py; the job takes them. There may be None.
   -1 with an exception. */
static int take_minus(PyObject *minus, PyObject *form, Job *job)
{
    View view;
    if (minus == Py_None)
        return 1;
    const int64_t *type = form_in(form)->key, *shape = type + 2;
    int is_there = job->channels ? 0 : look_at(minus, &view);
    if (is_there != 1 || type[0] != view.type.code || type[1] != view.type.bits ||
        key_size(form) != (Py_ssize_t)((2 + 2 * (size_t)view.ndim) * sizeof *type))
        return is_there < 0 ? -1 : 0;
    for (int d = 0; d < view.ndim; d++) {
        int64_t stride = !d && job->outer > 1 ? (int64_t)job->inner : shape[view.ndim + d];
        if (view.shape[d] != shape[d] || (shape[d] > 1 && view.stride[d] != stride))
            return 0;
    }
    job->minus = view.data;
    Py_ssize_t is_negated = asked(minus, is_neg);
    return is_negated < 0 ? refused() : is_negated == 0;
}

static PyTypeObject *reader_type;

/* Whether the item (reader, tensor, minus) is read together with others; -1 with an exception. */
static int take_item(PyObject *item, Job *job, Reader **reader, int *with_abs_sum)
{
    PyObject *tensor, *minus, *self;
    if (!PyArg_ParseTuple(item, "O!OO", reader_type, &self, &tensor, &minus))
        return -1;
    *reader = (Reader *)self;
    PyObject *form = (*reader)->form;
    if (form == Py_None || (*reader)->counts != Py_None)
        return 0;
    Py_INCREF(form);
    int is_taken = take_job(*reader, tensor, form, job);
    if (is_taken == 1)
        is_taken = take_minus(minus, form, job);
    *with_abs_sum |= form_in(form)->with_abs_sum;
    Py_DECREF(form);
    if (is_taken < 0 && PyErr_ExceptionMatches(PyExc_Exception)) { /* who measures it by itself meets it again */
        PyErr_Clear();
        is_taken = 0;
    }
    return is_taken;
}

static PyObject *read_all(PyObject *module, PyObject *args)
{
    PyObject *list, *rest = PyList_New(0);
    if (!rest || !PyArg_ParseTuple(args, "O!", &PyList_Type, &list)) {
        Py_XDECREF(rest);
        return NULL;
    }
    size_t all = (size_t)PyList_Size(list), count = 0, is_kept = 0;
    Job *jobs = PyMem_Calloc(all + 1, sizeof *jobs);
    Reader **readers = PyMem_Calloc(all + 1, sizeof *readers);
    PyObject **memory = PyMem_Calloc(all + 1, sizeof *memory);
    double (*rows)[WIDTH] = PyMem_Calloc(all + 1, sizeof *rows);
    int with_abs_sum = 0, threads = threads_now(), is_fine = jobs && readers && memory && rows && threads >= 0;
    if (!is_fine && !PyErr_Occurred())
        PyErr_NoMemory();
    for (size_t i = 0; is_fine && i < all; i++) {
        PyObject *item = PyList_GetItem(list, (Py_ssize_t)i);
        int is_taken = item ? take_item(item, jobs + count, readers + count, &with_abs_sum) : -1;
        if (is_taken == 1) {
            jobs[count].row = rows[count];
            memory[count] = memory_for(jobs + count);
            is_fine = memory[count] != NULL;
            count += (size_t)is_fine;
        } else {
            is_fine = is_taken == 0 && !PyList_Append(rest, item);
        }
    }
    if (is_fine && count)
        is_fine = do_jobs(jobs, count, with_abs_sum, NULL, threads);
    for (; is_fine && is_kept < count; is_kept++)
        is_fine = !append_row(readers[is_kept], rows[is_kept], memory[is_kept]);
    for (; is_kept < count; is_kept++)
        Py_XDECREF(memory[is_kept]);
    PyMem_Free(jobs);
    PyMem_Free(readers);
    PyMem_Free(memory);
    PyMem_Free(rows);
    if (!is_fine)
        Py_CLEAR(rest);
    return rest;
}

#define FIELD(name) {#name, T_OBJECT, offsetof(Reader, name), 0, NULL}

static PyMemberDef reader_members[] = {
    FIELD(otherwise), FIELD(on_fault), FIELD(index), FIELD(rows), FIELD(counts), FIELD(lock),
    FIELD(clock),
    {"room", T_PYSSIZET, offsetof(Reader, room), 0, NULL},
    {"calls", T_PYSSIZET, offsetof(Reader, calls), 0, NULL},
    {"most", T_PYSSIZET, offsetof(Reader, most), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef reader_methods[] = {
    {"read_as", read_as, METH_VARARGS, NULL},
    {"read_nothing", read_nothing, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, new_reader},          {Py_tp_dealloc, free_reader},    {Py_tp_traverse, traverse_reader},
    {Py_tp_clear, clear_reader},      {Py_tp_call, call_reader},       {Py_tp_members, reader_members},
    {Py_tp_methods, reader_methods},  {0, NULL},
};

static PyType_Spec reader_spec = {
    "hookboard.measure._native.Reader", sizeof(Reader), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, reader_slots,
};
