/* One pass over float32 values where torch needs five. Optional: without it cpu.py does the same with torch's own
   operations. Tensors come as the address of their first value: native.py, the only caller, has looked at each and
   holds it alive. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The compiler vectorizes over the lanes, for each of these processors, and picks one when the module is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* What such a function calls must become a part of it: by itself it would be made for the oldest processor. */
#if defined(__GNUC__)
#define PART_OF_CALLER static inline __attribute__((always_inline))
#define FETCH(address) __builtin_prefetch(address, 0, 2) /* does nothing where there is no memory */
#else
#define FETCH(address)
#define PART_OF_CALLER static inline
#endif

#define LANES 16
#define CHUNK 4096 /* values that stay in the fastest cache for a second look */
#define AHEAD 512  /* values */
#define BESIDE 64  /* channels that are worked on together */
#define SHIFT 19   /* as in bins.py */
#define BINS 8192

static const double CANCELLATION = 1e-6; /* as in cpu.py */

enum { COUNT, MEAN, M2, ABS_SUM, ZEROS, NANS, POSINF, NEGINF, MIN, MAX, WIDTH }; /* as in row.py */

static const double EMPTY[WIDTH] = {[MIN] = INFINITY, [MAX] = -INFINITY};

/* Values of some channels: as many rows of each. */
typedef struct {
    const float *x;
    size_t channels, rows, width;
    size_t apart;  /* from one channel to the next */
    size_t stride; /* from one row to the next */
} Part;

/* What is summed up of each channel. */
typedef struct {
    double sum[BESIDE], squares[BESIDE], abs_sum[BESIDE], zeros[BESIDE], min[BESIDE], max[BESIDE];
} Sums;

/* Sums of values that lie LANES apart. */
typedef struct {
    double sum[LANES], squares[LANES], abs_sum[LANES];
    float min[LANES], max[LANES];
    int32_t zeros[LANES];
} Lanes;

PART_OF_CALLER void add_value(Lanes *lanes, int j, float value)
{
    double wide = value;
    lanes->sum[j] += wide;
    lanes->squares[j] += wide * wide;
    lanes->min[j] = value < lanes->min[j] ? value : lanes->min[j];
    lanes->max[j] = value > lanes->max[j] ? value : lanes->max[j];
    lanes->zeros[j] += value == 0;
}

PART_OF_CALLER Lanes no_lanes(void)
{
    Lanes lanes = {{0}};
    for (int j = 0; j < LANES; j++) {
        lanes.min[j] = INFINITY;
        lanes.max[j] = -INFINITY;
    }
    return lanes;
}

/* Adds rows of `width` values, a multiple of LANES. */
PART_OF_CALLER void add_rows(Lanes *lanes, const float *restrict x, size_t rows, size_t width, size_t stride,
                            int with_abs_sum)
{
    int is_scattered = rows > 1 && width < AHEAD; /* the processor does not foresee which memory is needed next */
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < width; i += LANES) {
            if (is_scattered)
                FETCH(x + r * stride + i + AHEAD);
            for (int j = 0; j < LANES; j++)
                add_value(lanes, j, x[r * stride + i + j]);
        }
    }
    if (with_abs_sum)
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < width; i += LANES)
                for (int j = 0; j < LANES; j++)
                    lanes->abs_sum[j] += fabsf(x[r * stride + i + j]);
}

/* Adds what is in `count` lanes from the first one on to the sums of channel c. */
PART_OF_CALLER void add_lanes(Sums *sums, size_t c, const Lanes *lanes, size_t first, size_t count)
{
    for (size_t j = first; j < first + count; j++) {
        sums->sum[c] += lanes->sum[j];
        sums->squares[c] += lanes->squares[j];
        sums->abs_sum[c] += lanes->abs_sum[j];
        sums->zeros[c] += lanes->zeros[j];
        sums->min[c] = lanes->min[j] < sums->min[c] ? lanes->min[j] : sums->min[c];
        sums->max[c] = lanes->max[j] > sums->max[c] ? lanes->max[j] : sums->max[c];
    }
}

/* One channel after the other. */
FOR_EACH_PROCESSOR
static void sum_up(Sums *restrict sums, const Part *restrict part, int with_abs_sum)
{
    size_t whole = part->width - part->width % LANES;
    for (size_t c = 0; c < part->channels; c++) {
        const float *restrict x = part->x + c * part->apart;
        Lanes lanes = no_lanes();
        add_rows(&lanes, x, part->rows, whole, part->stride, with_abs_sum);
        int j = 0;
        for (size_t r = 0; whole < part->width && r < part->rows; r++) {
            for (size_t i = whole; i < part->width; i++, j = (j + 1) % LANES) { /* none waits for the one before */
                float value = x[r * part->stride + i];
                add_value(&lanes, j, value);
                lanes.abs_sum[j] += with_abs_sum ? fabsf(value) : 0;
            }
        }
        for (int half = LANES / 2; half; half /= 2) {
            for (int j = 0; j < half; j++) {
                lanes.sum[j] += lanes.sum[j + half];
                lanes.squares[j] += lanes.squares[j + half];
                lanes.abs_sum[j] += lanes.abs_sum[j + half];
                lanes.zeros[j] += lanes.zeros[j + half];
                lanes.min[j] = lanes.min[j + half] < lanes.min[j] ? lanes.min[j + half] : lanes.min[j];
                lanes.max[j] = lanes.max[j + half] > lanes.max[j] ? lanes.max[j + half] : lanes.max[j];
            }
        }
        sums->sum[c] = lanes.sum[0];
        sums->squares[c] = lanes.squares[0];
        sums->abs_sum[c] = lanes.abs_sum[0];
        sums->zeros[c] = lanes.zeros[0];
        sums->min[c] = lanes.min[0];
        sums->max[c] = lanes.max[0];
    }
}

/* As many channels at once as there are lanes for. `left` values are there to the end of each row. */
PART_OF_CALLER void sum_up_beside(Sums *restrict sums, const Part *restrict part, size_t width, size_t left,
                                 int with_abs_sum)
{
    size_t at_once = LANES / width;
    for (size_t c = 0; c < part->channels; c += at_once, left -= at_once * width) {
        size_t here = part->channels - c < at_once ? part->channels - c : at_once;
        size_t before = left < LANES ? LANES - left : 0; /* so as not to read beyond the end */
        Lanes lanes = no_lanes();
        add_rows(&lanes, part->x + c * width - before, part->rows, LANES, part->stride, with_abs_sum);
        for (size_t k = 0; k < here; k++)
            add_lanes(sums, c + k, &lanes, before + k * width, width);
    }
}

/* The same as sum_up for channels that have fewer values in a row than there are lanes. */
FOR_EACH_PROCESSOR
static void sum_up_narrow(Sums *restrict sums, const Part *restrict part, size_t left, int with_abs_sum)
{
    *sums = (Sums){{0}};
    for (size_t c = 0; c < BESIDE; c++) {
        sums->min[c] = INFINITY;
        sums->max[c] = -INFINITY;
    }
    if (part->width == 1) /* known to the compiler */
        sum_up_beside(sums, part, 1, left, with_abs_sum);
    else
        sum_up_beside(sums, part, part->width, left, with_abs_sum);
}

FOR_EACH_PROCESSOR
static double squares_about(double mean, const float *restrict x, size_t count)
{
    double squares[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            double away = x[i + j] - mean;
            squares[j] += away * away;
        }
    }
    for (int j = 0; i < count; i++, j++) {
        double away = x[i] - mean;
        squares[j] += away * away;
    }
    double all = 0;
    for (int j = 0; j < LANES; j++)
        all += squares[j];
    return all;
}

/* Counts what is not finite into the row and copies the rest; returns how many those are. */
static size_t finite_of(const float *x, size_t count, float *finite, double *row)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (isfinite(x[i]))
            finite[kept++] = x[i];
        else
            row[isnan(x[i]) ? NANS : x[i] > 0 ? POSINF : NEGINF]++;
    }
    return kept;
}

/* Chan, Golub and LeVeque, as in merge.py. */
static void merge(double *row, const double *other)
{
    double whole = row[COUNT] + other[COUNT], away = other[MEAN] - row[MEAN], share = other[COUNT] / fmax(whole, 1);
    row[M2] += other[M2] + away * away * row[COUNT] * share;
    row[MEAN] += away * share;
    row[COUNT] = whole;
    for (int f = ABS_SUM; f < MIN; f++)
        row[f] += other[f];
    row[MIN] = fmin(row[MIN], other[MIN]);
    row[MAX] = fmax(row[MAX], other[MAX]);
}

/* Sums become what merge.py merges. */
static void finish(double *row)
{
    double at_least_one = fmax(row[COUNT], 1);
    row[M2] = sqrt(row[M2] / at_least_one);
    row[ABS_SUM] /= at_least_one;
}

/* Adds at most CHUNK values to a row that still has sums. */
static void add_chunk(double *row, const float *x, size_t count, int with_abs_sum)
{
    float finite[CHUNK];
    Part part = {.x = x, .channels = 1, .rows = 1, .width = count};
    Sums sums;
    sum_up(&sums, &part, with_abs_sum);
    if (!isfinite(*sums.squares)) {
        part.width = count = finite_of(x, count, finite, row);
        if (!count)
            return;
        part.x = x = finite;
        sum_up(&sums, &part, with_abs_sum);
    }
    double n = (double)count, mean = *sums.sum / n, m2 = *sums.squares - *sums.sum * mean;
    if (m2 < CANCELLATION * *sums.squares)
        m2 = squares_about(mean, x, count);

    double chunk[WIDTH] = {n, mean, m2, *sums.abs_sum, *sums.zeros, 0, 0, 0, *sums.min, *sums.max};
    merge(row, chunk);
}

/* The columns of some rows. */
typedef double Columns[WIDTH][BESIDE];

/* The same as add_chunk from the sums on, for n values of each channel. `again` says where that takes a second look. */
FOR_EACH_PROCESSOR
static void add_sums(Columns columns, const Sums *restrict sums, size_t channels, double n, int64_t *restrict again)
{
    double *restrict count = columns[COUNT], *restrict mean = columns[MEAN], *restrict m2 = columns[M2];
    double *restrict low = columns[MIN], *restrict high = columns[MAX];
    for (size_t c = 0; c < channels; c++) {
        double new_mean = sums->sum[c] / n, new_m2 = sums->squares[c] - sums->sum[c] * new_mean;
        int is_fine = new_m2 >= CANCELLATION * sums->squares[c]; /* no number is more than NaN */
        double away = new_mean - mean[c], share = n / (count[c] + n);
        again[c] = !is_fine;
        m2[c] += is_fine ? new_m2 + away * away * count[c] * share : 0;
        mean[c] += is_fine ? away * share : 0;
        count[c] += is_fine ? n : 0;
        columns[ABS_SUM][c] += is_fine ? sums->abs_sum[c] : 0;
        columns[ZEROS][c] += is_fine ? sums->zeros[c] : 0;
        low[c] = is_fine && sums->min[c] < low[c] ? sums->min[c] : low[c];
        high[c] = is_fine && sums->max[c] > high[c] ? sums->max[c] : high[c];
    }
}

static void add_part(Columns columns, const Part *part, size_t left, int with_abs_sum)
{
    Sums sums;
    int64_t again[BESIDE];
    if (part->apart == part->width && part->apart < LANES && part->stride >= LANES)
        sum_up_narrow(&sums, part, left, with_abs_sum);
    else
        sum_up(&sums, part, with_abs_sum);
    add_sums(columns, &sums, part->channels, (double)(part->rows * part->width), again);
    for (size_t c = 0; c < part->channels; c++) {
        if (!again[c])
            continue;
        float values[CHUNK];
        double row[WIDTH];
        for (size_t r = 0; r < part->rows; r++)
            memcpy(values + r * part->width, part->x + c * part->apart + r * part->stride, part->width * sizeof *values);
        for (int f = 0; f < WIDTH; f++)
            row[f] = columns[f][c];
        add_chunk(row, values, part->rows * part->width, with_abs_sum);
        for (int f = 0; f < WIDTH; f++)
            columns[f][c] = row[f];
    }
}

/* The row of all that the columns describe. */
static void merge_columns(double *row, Columns columns, size_t channels)
{
    double sum = 0;
    memcpy(row, EMPTY, sizeof EMPTY);
    for (size_t c = 0; c < channels; c++) {
        row[COUNT] += columns[COUNT][c];
        sum += columns[COUNT][c] * columns[MEAN][c];
        for (int f = ABS_SUM; f < MIN; f++)
            row[f] += columns[f][c];
        row[MIN] = columns[MIN][c] < row[MIN] ? columns[MIN][c] : row[MIN];
        row[MAX] = columns[MAX][c] > row[MAX] ? columns[MAX][c] : row[MAX];
    }
    row[MEAN] = sum / fmax(row[COUNT], 1);
    for (size_t c = 0; c < channels; c++) {
        double away = columns[MEAN][c] - row[MEAN];
        row[M2] += columns[M2][c] + away * away * columns[COUNT][c];
    }
}

/* The rows of values of shape (outer, channels, inner), and the row of all of them. The values of a channel may lie
   farther apart from those of the next than `inner`, where `outer` is 1. */
static void rows_of(double *all, double (*rows)[WIDTH], const float *x, size_t outer, size_t channels, size_t inner,
                    size_t apart, int with_abs_sum)
{
    Part part = {.stride = channels * apart, .apart = apart};
    size_t together = inner < LANES ? CHUNK / LANES : inner < CHUNK ? CHUNK / inner : 1;
    for (size_t c = 0; c < channels; c += BESIDE) {
        Columns columns;
        double block[WIDTH];
        for (int f = 0; f < WIDTH; f++)
            for (int k = 0; k < BESIDE; k++)
                columns[f][k] = EMPTY[f];
        part.channels = channels - c < BESIDE ? channels - c : BESIDE;
        for (size_t o = 0; o < outer; o += together) {
            part.rows = outer - o < together ? outer - o : together;
            for (size_t i = 0; i < inner; i += CHUNK) {
                part.width = inner - i < CHUNK ? inner - i : CHUNK;
                part.x = x + o * part.stride + c * apart + i;
                add_part(columns, &part, part.stride - c * apart, with_abs_sum);
            }
        }
        merge_columns(block, columns, part.channels);
        merge(all, block);
        for (size_t k = 0; k < part.channels; k++) {
            for (int f = 0; f < WIDTH; f++)
                rows[c + k][f] = columns[f][k];
            finish(rows[c + k]);
        }
    }
    finish(all);
}

static PyObject *as_list(const double *row)
{
    return Py_BuildValue("[dddddddddd]", row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8],
                         row[9]);
}

/* The row of values that are one after the other. */
static void row_of(double *row, const float *x, size_t count, int with_abs_sum)
{
    for (size_t i = 0; i < count; i += CHUNK)
        add_chunk(row, x + i, count - i < CHUNK ? count - i : CHUNK, with_abs_sum);
    finish(row);
}

static PyObject *measure(PyObject *module, PyObject *args)
{
    Py_ssize_t address, count;
    int with_abs_sum;
    if (!PyArg_ParseTuple(args, "nnp", &address, &count, &with_abs_sum))
        return NULL;
    double row[WIDTH];
    memcpy(row, EMPTY, sizeof row);
    Py_BEGIN_ALLOW_THREADS
    row_of(row, (const float *)address, (size_t)count, with_abs_sum);
    Py_END_ALLOW_THREADS
    return as_list(row);
}

static PyObject *measure_channels(PyObject *module, PyObject *args)
{
    Py_ssize_t address, outer, channels, inner;
    int with_abs_sum;
    if (!PyArg_ParseTuple(args, "nnnnp", &address, &outer, &channels, &inner, &with_abs_sum))
        return NULL;
    double row[WIDTH];
    PyObject *rows = PyByteArray_FromStringAndSize(NULL, channels * (Py_ssize_t)sizeof row);
    if (!rows)
        return NULL;
    double (*into)[WIDTH] = (double (*)[WIDTH])PyByteArray_AsString(rows);
    memcpy(row, EMPTY, sizeof row);
    Py_BEGIN_ALLOW_THREADS
    rows_of(row, into, (const float *)address, (size_t)outer, (size_t)channels, (size_t)inner, (size_t)inner,
            with_abs_sum);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("NN", as_list(row), rows);
}

/* A tensor of several that are measured in one call: values of shape (outer, channels, inner), where `channels` is 0 if
   only the row of all is wanted. The runs of `inner` values begin `apart` values apart. What lies at `minus`, without
   gaps, is subtracted first, unless that is 0; then there are no channels. */
typedef struct {
    Py_ssize_t address, minus, outer, channels, inner, apart;
} Job;

static int read_job(PyObject *list, Py_ssize_t i, Job *job)
{
    PyObject *item = PyList_GetItem(list, i);
    return item && PyArg_ParseTuple(item, "nnnnnn", &job->address, &job->minus, &job->outer, &job->channels,
                                    &job->inner, &job->apart);
}

/* The row of the differences of a job, or of values with gaps. */
FOR_EACH_PROCESSOR
static void row_of_runs(double *row, const Job *job, int with_abs_sum)
{
    const float *minus = (const float *)job->minus;
    float chunk[CHUNK];
    Py_ssize_t used = 0;
    for (Py_ssize_t o = 0; o < job->outer; o++) {
        const float *x = (const float *)job->address + o * job->apart;
        for (Py_ssize_t i = 0, here; i < job->inner; i += here) {
            here = job->inner - i < CHUNK - used ? job->inner - i : CHUNK - used;
            for (Py_ssize_t k = 0; k < here; k++)
                chunk[used + k] = minus ? x[i + k] - minus[i + k] : x[i + k];
            used += here;
            if (used == CHUNK) {
                add_chunk(row, chunk, CHUNK, with_abs_sum);
                used = 0;
            }
        }
        minus = minus ? minus + job->inner : NULL;
    }
    if (used)
        add_chunk(row, chunk, (size_t)used, with_abs_sum);
    finish(row);
}

static void do_job(double *row, double (*into)[WIDTH], const Job *job, int with_abs_sum)
{
    const float *x = (const float *)job->address;
    memcpy(row, EMPTY, sizeof EMPTY);
    if (job->channels)
        rows_of(row, into, x, (size_t)job->outer, (size_t)job->channels, (size_t)job->inner, (size_t)job->apart,
                with_abs_sum);
    else if (job->minus || job->outer > 1)
        row_of_runs(row, job, with_abs_sum);
    else
        row_of(row, x, (size_t)job->inner, with_abs_sum);
}

static PyObject *measure_all(PyObject *module, PyObject *args)
{
    PyObject *list, *all = NULL, *each = NULL;
    int with_abs_sum;
    if (!PyArg_ParseTuple(args, "Op", &list, &with_abs_sum))
        return NULL;
    Py_ssize_t count = PyList_Size(list), channels = 0;
    Job *jobs = count < 0 ? NULL : PyMem_Malloc((size_t)count * sizeof *jobs);
    if (!jobs)
        return count < 0 ? NULL : PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_job(list, i, jobs + i))
            goto done;
        channels += jobs[i].channels;
    }
    all = PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof EMPTY);
    each = all ? PyByteArray_FromStringAndSize(NULL, channels * (Py_ssize_t)sizeof EMPTY) : NULL;
    if (!each)
        goto done;
    double (*row)[WIDTH] = (double (*)[WIDTH])PyByteArray_AsString(all);
    double (*into)[WIDTH] = (double (*)[WIDTH])PyByteArray_AsString(each);
    Py_BEGIN_ALLOW_THREADS
    for (Job *job = jobs; job < jobs + count; row++, into += job->channels, job++)
        do_job(*row, into, job, with_abs_sum);
    Py_END_ALLOW_THREADS
done:
    PyMem_Free(jobs);
    if (each)
        return Py_BuildValue("NN", all, each);
    Py_XDECREF(all);
    return NULL;
}

static inline uint32_t bin_of(const float *value)
{
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    return bits >> SHIFT;
}

static PyObject *count_into(PyObject *module, PyObject *args)
{
    Py_ssize_t counts_address, address, count;
    if (!PyArg_ParseTuple(args, "nnn", &counts_address, &address, &count))
        return NULL;
    int64_t *counts = (int64_t *)counts_address;
    const float *x = (const float *)address;
    Py_BEGIN_ALLOW_THREADS
    /* Neighbours are often equal, and to count twice in one place is to wait for the first: hence two tables. */
    uint32_t even[BINS], odd[BINS];
    for (Py_ssize_t end; count > 0; x += end, count -= end) {
        end = count < INT32_MAX ? count : INT32_MAX;
        memset(even, 0, sizeof even);
        memset(odd, 0, sizeof odd);
        Py_ssize_t i = 0;
        for (; i + 2 <= end; i += 2) {
            even[bin_of(x + i)]++;
            odd[bin_of(x + i + 1)]++;
        }
        if (i < end)
            even[bin_of(x + i)]++;
        for (int bin = 0; bin < BINS; bin++)
            counts[bin] += (int64_t)even[bin] + odd[bin];
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"measure", measure, METH_VARARGS, "measure(address, count, with_abs_mean): the row of float32 values."},
    {"measure_channels", measure_channels, METH_VARARGS,
     "measure_channels(address, outer, channels, inner, with_abs_mean): the row of float32 values of shape (outer, "
     "channels, inner), and the memory of the rows of the channels."},
    {"measure_all", measure_all, METH_VARARGS,
     "measure_all([(address, minus, outer, channels, inner, apart), ...], with_abs_mean): the memory of the rows of "
     "several tensors, and that of the rows of their channels, see Job."},
    {"count_into", count_into, METH_VARARGS, "count_into(counts, address, count): count float32 values into bins."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
