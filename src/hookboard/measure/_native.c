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

#define LANES 16
#define CHUNK 4096 /* values that stay in the fastest cache for a second look */
#define SHIFT 19   /* as in bins.py */
#define BINS 8192

static const double CANCELLATION = 1e-6; /* as in cpu.py */

typedef struct {
    double count, mean, m2, abs_sum, zeros, nan, posinf, neginf, min, max;
} Row;

typedef struct {
    double sum, squares;
    float min, max;
    int64_t zeros;
} Sums;

FOR_EACH_PROCESSOR
static Sums sums_of(const float *restrict x, size_t count)
{
    double sum[LANES] = {0}, squares[LANES] = {0};
    float min[LANES], max[LANES];
    int32_t zeros[LANES] = {0};
    for (int j = 0; j < LANES; j++) {
        min[j] = INFINITY;
        max[j] = -INFINITY;
    }
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float value = x[i + j];
            double wide = value;
            sum[j] += wide;
            squares[j] += wide * wide;
            min[j] = value < min[j] ? value : min[j];
            max[j] = value > max[j] ? value : max[j];
            zeros[j] += value == 0;
        }
    }
    for (int j = 0; i < count; i++, j++) {
        float value = x[i];
        double wide = value;
        sum[j] += wide;
        squares[j] += wide * wide;
        min[j] = value < min[j] ? value : min[j];
        max[j] = value > max[j] ? value : max[j];
        zeros[j] += value == 0;
    }
    Sums all = {.min = INFINITY, .max = -INFINITY};
    for (int j = 0; j < LANES; j++) {
        all.sum += sum[j];
        all.squares += squares[j];
        all.min = min[j] < all.min ? min[j] : all.min;
        all.max = max[j] > all.max ? max[j] : all.max;
        all.zeros += zeros[j];
    }
    return all;
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

FOR_EACH_PROCESSOR
static double abs_sum_of(const float *restrict x, size_t count)
{
    double sum[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            sum[j] += fabsf(x[i + j]);
    for (int j = 0; i < count; i++, j++)
        sum[j] += fabsf(x[i]);
    double all = 0;
    for (int j = 0; j < LANES; j++)
        all += sum[j];
    return all;
}

/* Counts what is not finite into the row and copies the rest; returns how many those are. */
static size_t finite_of(const float *x, size_t count, float *finite, Row *row)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (isfinite(x[i]))
            finite[kept++] = x[i];
        else if (isnan(x[i]))
            row->nan++;
        else if (x[i] > 0)
            row->posinf++;
        else
            row->neginf++;
    }
    return kept;
}

static void add_chunk(Row *row, const float *x, size_t count, int with_abs_sum)
{
    float finite[CHUNK];
    Sums part = sums_of(x, count);
    if (!isfinite(part.squares)) {
        count = finite_of(x, count, finite, row);
        if (!count)
            return;
        x = finite;
        part = sums_of(x, count);
    }
    double n = (double)count, mean = part.sum / n, m2 = part.squares - part.sum * mean;
    if (m2 < CANCELLATION * part.squares)
        m2 = squares_about(mean, x, count);

    /* Chan, Golub and LeVeque, as in merge.py. */
    double whole = row->count + n, away = mean - row->mean;
    row->m2 += m2 + away * away * row->count * n / whole;
    row->mean += away * n / whole;
    row->count = whole;
    if (with_abs_sum)
        row->abs_sum += abs_sum_of(x, count);
    row->zeros += (double)part.zeros;
    row->min = fmin(row->min, part.min);
    row->max = fmax(row->max, part.max);
}

static PyObject *measure(PyObject *module, PyObject *args)
{
    Py_ssize_t address, count;
    int with_abs_sum;
    if (!PyArg_ParseTuple(args, "nnp", &address, &count, &with_abs_sum))
        return NULL;
    const float *x = (const float *)address;
    Row row = {.min = INFINITY, .max = -INFINITY};
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i += CHUNK)
        add_chunk(&row, x + i, (size_t)(count - i < CHUNK ? count - i : CHUNK), with_abs_sum);
    Py_END_ALLOW_THREADS
    double at_least_one = row.count > 1 ? row.count : 1;
    return Py_BuildValue("[dddddddddd]", row.count, row.mean, sqrt(row.m2 / at_least_one), row.abs_sum / at_least_one,
                         row.zeros, row.nan, row.posinf, row.neginf, row.min, row.max);
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
    {"count_into", count_into, METH_VARARGS, "count_into(counts, address, count): count float32 values into bins."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
