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
    double sum, squares, abs_sum, zeros;
    float min, max;
} Sums;

/* Sums of values that lie LANES apart. */
typedef struct {
    double sum[LANES], squares[LANES], abs_sum[LANES];
    float min[LANES], max[LANES];
    int32_t zeros[LANES];
} Lanes;

static inline Lanes no_lanes(void)
{
    Lanes lanes = {{0}};
    for (int j = 0; j < LANES; j++) {
        lanes.min[j] = INFINITY;
        lanes.max[j] = -INFINITY;
    }
    return lanes;
}

/* Adds rows of `width` values, a multiple of LANES; each begins `stride` values behind the one before. */
FOR_EACH_PROCESSOR
static void add_rows(Lanes *to, const float *restrict x, size_t rows, size_t width, size_t stride, int with_abs_sum)
{
    Lanes lanes = *to; /* in registers */
    for (size_t r = 0; r < rows; r++) {
        const float *restrict row = x + r * stride;
        for (size_t i = 0; i < width; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                float value = row[i + j];
                double wide = value;
                lanes.sum[j] += wide;
                lanes.squares[j] += wide * wide;
                lanes.min[j] = value < lanes.min[j] ? value : lanes.min[j];
                lanes.max[j] = value > lanes.max[j] ? value : lanes.max[j];
                lanes.zeros[j] += value == 0;
            }
        }
    }
    if (with_abs_sum)
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < width; i += LANES)
                for (int j = 0; j < LANES; j++)
                    lanes.abs_sum[j] += fabsf(x[r * stride + i + j]);
    *to = lanes;
}

/* The same for fewer values than LANES in each row. */
static void add_narrow_rows(Lanes *to, const float *x, size_t rows, size_t width, size_t stride, int with_abs_sum)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < width; j++) {
            float value = x[r * stride + j];
            double wide = value;
            to->sum[j] += wide;
            to->squares[j] += wide * wide;
            to->abs_sum[j] += with_abs_sum ? fabs(wide) : 0;
            to->min[j] = value < to->min[j] ? value : to->min[j];
            to->max[j] = value > to->max[j] ? value : to->max[j];
            to->zeros[j] += value == 0;
        }
    }
}

/* Those of `count` lanes from the first one on, together. */
static inline Sums sums_in(const Lanes *lanes, size_t first, size_t count)
{
    Sums all = {.min = INFINITY, .max = -INFINITY};
    for (size_t j = first; j < first + count; j++) {
        all.sum += lanes->sum[j];
        all.squares += lanes->squares[j];
        all.abs_sum += lanes->abs_sum[j];
        all.zeros += lanes->zeros[j];
        all.min = lanes->min[j] < all.min ? lanes->min[j] : all.min;
        all.max = lanes->max[j] > all.max ? lanes->max[j] : all.max;
    }
    return all;
}

static Sums sums_of(const float *x, size_t rows, size_t width, size_t stride, int with_abs_sum)
{
    Lanes lanes = no_lanes();
    size_t whole = width - width % LANES;
    add_rows(&lanes, x, rows, whole, stride, with_abs_sum);
    add_narrow_rows(&lanes, x + whole, rows, width - whole, stride, with_abs_sum);
    return sums_in(&lanes, 0, LANES);
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

/* Merges the sums of n finite values into the row; m2 is that of the values. */
static inline void add_part(Row *row, const Sums *part, double n, double mean, double m2)
{
    /* Chan, Golub and LeVeque, as in merge.py. */
    double whole = row->count + n, away = mean - row->mean;
    row->m2 += m2 + away * away * row->count * n / whole;
    row->mean += away * n / whole;
    row->count = whole;
    row->abs_sum += part->abs_sum;
    row->zeros += part->zeros;
    row->min = fmin(row->min, part->min);
    row->max = fmax(row->max, part->max);
}

static void add_chunk(Row *row, const float *x, size_t count, int with_abs_sum)
{
    float finite[CHUNK];
    Sums part = sums_of(x, 1, count, 0, with_abs_sum);
    if (!isfinite(part.squares)) {
        count = finite_of(x, count, finite, row);
        if (!count)
            return;
        x = finite;
        part = sums_of(x, 1, count, 0, with_abs_sum);
    }
    double n = (double)count, mean = part.sum / n, m2 = part.squares - part.sum * mean;
    if (m2 < CANCELLATION * part.squares)
        m2 = squares_about(mean, x, count);
    add_part(row, &part, n, mean, m2);
}

static void add_all(Row *row, const float *x, size_t count, int with_abs_sum)
{
    for (size_t i = 0; i < count; i += CHUNK)
        add_chunk(row, x + i, count - i < CHUNK ? count - i : CHUNK, with_abs_sum);
}

/* Rows of one channel, at most CHUNK values, of which the sums are known. */
static void add_channel(Row *row, const Sums *part, const float *x, size_t rows, size_t width, size_t stride,
                        int with_abs_sum)
{
    double n = (double)(rows * width), mean = part->sum / n, m2 = part->squares - part->sum * mean;
    if (isfinite(part->squares) && !(m2 < CANCELLATION * part->squares)) {
        add_part(row, part, n, mean, m2);
        return;
    }
    float together[CHUNK];
    for (size_t r = 0; r < rows; r++)
        memcpy(together + r * width, x + r * stride, width * sizeof *x);
    add_chunk(row, together, rows * width, with_abs_sum);
}

/* Channels of at least LANES neighbouring values: one channel after the other. */
static void add_wide_channels(Row *row, const float *x, size_t outer, size_t channels, size_t inner, int with_abs_sum)
{
    size_t stride = channels * inner, together = inner < CHUNK ? CHUNK / inner : 1;
    for (size_t c = 0; c < channels; c++, row++, x += inner) {
        for (size_t o = 0; o < outer; o += together) {
            const float *from = x + o * stride;
            size_t rows = outer - o < together ? outer - o : together;
            if (rows == 1) {
                add_all(row, from, inner, with_abs_sum);
                continue;
            }
            Sums part = sums_of(from, rows, inner, stride, with_abs_sum);
            add_channel(row, &part, from, rows, inner, stride, with_abs_sum);
        }
    }
}

/* Channels of fewer values: as many at once as the lanes hold, and many rows. */
static void add_narrow_channels(Row *row, const float *x, size_t outer, size_t channels, size_t inner, int with_abs_sum)
{
    size_t stride = channels * inner, together = CHUNK / LANES, at_once = LANES / inner;
    for (size_t o = 0; o < outer; o += together) {
        const float *from = x + o * stride;
        size_t rows = outer - o < together ? outer - o : together;
        for (size_t c = 0; c < channels; c += at_once) {
            size_t here = channels - c < at_once ? channels - c : at_once;
            size_t before = stride - c * inner < LANES ? LANES - (stride - c * inner) : 0; /* they would be beyond */
            Lanes lanes = no_lanes();
            if (stride < LANES) {
                before = 0;
                add_narrow_rows(&lanes, from, rows, stride, stride, with_abs_sum);
            } else {
                add_rows(&lanes, from + c * inner - before, rows, LANES, stride, with_abs_sum);
            }
            for (size_t k = 0; k < here; k++) {
                Sums part = sums_in(&lanes, before + k * inner, inner);
                add_channel(row + c + k, &part, from + (c + k) * inner, rows, inner, stride, with_abs_sum);
            }
        }
    }
}

/* Rows that share no value, in one. */
static Row merged(const Row *rows, size_t count)
{
    Row all = {.min = INFINITY, .max = -INFINITY};
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        all.count += rows[i].count;
        sum += rows[i].count * rows[i].mean;
        all.abs_sum += rows[i].abs_sum;
        all.zeros += rows[i].zeros;
        all.nan += rows[i].nan;
        all.posinf += rows[i].posinf;
        all.neginf += rows[i].neginf;
        all.min = rows[i].min < all.min ? rows[i].min : all.min;
        all.max = rows[i].max > all.max ? rows[i].max : all.max;
    }
    all.mean = sum / (all.count > 1 ? all.count : 1);
    for (size_t i = 0; i < count; i++) {
        double away = rows[i].mean - all.mean;
        all.m2 += rows[i].m2 + away * away * rows[i].count;
    }
    return all;
}

/* Sums become what merge.py merges. */
static void finish(Row *row)
{
    double at_least_one = row->count > 1 ? row->count : 1;
    row->m2 = sqrt(row->m2 / at_least_one);
    row->abs_sum /= at_least_one;
}

static PyObject *as_list(const Row *row)
{
    return Py_BuildValue("[dddddddddd]", row->count, row->mean, row->m2, row->abs_sum, row->zeros, row->nan,
                         row->posinf, row->neginf, row->min, row->max);
}

static PyObject *measure(PyObject *module, PyObject *args)
{
    Py_ssize_t address, count;
    int with_abs_sum;
    if (!PyArg_ParseTuple(args, "nnp", &address, &count, &with_abs_sum))
        return NULL;
    Row row = {.min = INFINITY, .max = -INFINITY};
    Py_BEGIN_ALLOW_THREADS
    add_all(&row, (const float *)address, (size_t)count, with_abs_sum);
    finish(&row);
    Py_END_ALLOW_THREADS
    return as_list(&row);
}

static PyObject *measure_channels(PyObject *module, PyObject *args)
{
    Py_ssize_t rows_address, address, outer, channels, inner;
    int with_abs_sum;
    if (!PyArg_ParseTuple(args, "nnnnnp", &rows_address, &address, &outer, &channels, &inner, &with_abs_sum))
        return NULL;
    Row *rows = (Row *)rows_address, all;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t c = 0; c < channels; c++)
        rows[c] = (Row){.min = INFINITY, .max = -INFINITY};
    if (outer && inner)
        (inner < LANES ? add_narrow_channels : add_wide_channels)(
            rows, (const float *)address, (size_t)outer, (size_t)channels, (size_t)inner, with_abs_sum);
    all = merged(rows, (size_t)channels);
    for (Py_ssize_t c = 0; c < channels; c++)
        finish(rows + c);
    finish(&all);
    Py_END_ALLOW_THREADS
    return as_list(&all);
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
     "measure_channels(rows, address, outer, channels, inner, with_abs_mean): write the row of each channel of float32 "
     "values of shape (outer, channels, inner); the row of all of them."},
    {"count_into", count_into, METH_VARARGS, "count_into(counts, address, count): count float32 values into bins."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
