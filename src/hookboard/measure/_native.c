/* One pass over values where torch needs five. Optional: without it by_torch.py does the same with torch's own
   operations. native.py, the only caller, holds the tensors alive, and has looked at each that comes as the address
   of its first value. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Threads are torch's own, see find_threads. There are none on Windows. */
#if defined(__GNUC__) && defined(__LP64__)
#define HAS_THREADS
#include <dlfcn.h>
#include <unistd.h>
#endif

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

/* C's `restrict` as every compiler has it: that of Microsoft knows the plain word only in its newer modes. */
#define RESTRICT __restrict

#define LANES 16
#define CHUNK 4096 /* values that stay in the fastest cache for a second look */
#define AHEAD 512  /* values */
#define FAR 1024   /* values over gaps */
#define BESIDE 64  /* channels that are worked on together */
#define FEW_VALUES 64   /* of a channel */
#define WIDE ((FEW_VALUES + LANES) * BESIDE) /* values that stay in the second fastest */
#define SHIFT 19   /* as in row.py */
#define BINS 8192
#define FEW 2048   /* values for which a table of their own does not pay */

#define ENOUGH 65536    /* values that are worth more than one thread */
#define PIECE 16384     /* values that one thread takes at once */
#define MOST 128        /* pieces of one tensor */
#define RUN (4 * AHEAD) /* values of a piece that are one after the other: FETCH goes beyond the last ones in vain */
#define CHANNEL 128     /* values that take as long as to finish the row of a channel */
#define TENSOR 512      /* values that take as long as to begin with another tensor */

static const double CANCELLATION = 1e-6; /* a smaller part of the squares is lost in their rounding */

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 }; /* as in native.py */
/* As in row.py, once `finish` has made the deviation and abs_mean of M2 and ABS_SUM. */
enum { COUNT, MEAN, M2, ABS_SUM, ZEROS, NANS, POSINF, NEGINF, MIN, MAX, WIDTH };

static const double EMPTY[WIDTH] = {[MIN] = INFINITY, [MAX] = -INFINITY};

#ifdef HAS_THREADS
/* What a compiler calls for `#pragma omp parallel`: libgomp's function, which LLVM's and Intel's OpenMP have too. */
static void (*run_in_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*is_in_parallel)(void), (*most_threads)(void);
static pid_t process;

/* Takes the functions from the library that torch has loaded for all. Another one would start threads beside torch's
   own, and both would fight for the same processors. */
static void find_threads(void)
{
    process = getpid();
    is_in_parallel = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_in_parallel");
    most_threads = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    if (is_in_parallel && most_threads)
        run_in_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))dlsym(RTLD_DEFAULT, "GOMP_parallel");
}

/* A forked process would wait for threads that it does not have. A library that knows another number is not torch's. */
static int has_threads(int threads)
{
    return threads > 1 && run_in_parallel && getpid() == process && !is_in_parallel() && most_threads() == threads;
}

/* Calls the function in each of torch's `threads` threads at once, or only in this one. */
static void in_threads(void (*function)(void *), void *argument, int threads)
{
    if (has_threads(threads))
        run_in_parallel(function, argument, 0, 0); /* 0: all; fewer would end the others, and torch start them again */
    else
        function(argument);
}

static size_t take_next(size_t *next)
{
    return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
}

static void add_to(int64_t *sum, int64_t more)
{
    __atomic_fetch_add(sum, more, __ATOMIC_RELAXED);
}
#else
static void find_threads(void)
{
}

static void in_threads(void (*function)(void *), void *argument, int threads)
{
    function(argument);
}

static size_t take_next(size_t *next)
{
    return (*next)++;
}

static void add_to(int64_t *sum, int64_t more)
{
    *sum += more;
}
#endif

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t divided_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* Values of some channels: as many rows of each. */
typedef struct {
    const void *x;
    size_t channels, rows, width;
    size_t apart;  /* from one channel to the next */
    size_t stride; /* from one row to the next */
} Part;

/* Whether a channel has so few values that to add up the lanes of each would take longer than to copy them. */
static int has_few(const Part *part)
{
    return part->width < LANES || part->rows * part->width <= FEW_VALUES;
}

/* What is summed up of each channel. */
typedef struct {
    double sum[BESIDE], squares[BESIDE], abs_sum[BESIDE], zeros[BESIDE], min[BESIDE], max[BESIDE];
} Sums;

/* The bins that one thread has counted. */
typedef struct {
    uint32_t even[BINS], odd[BINS];
    size_t counted;
} Tables;

/* What is wanted beside sums: the bins go into `few` or into `tables`, unless both are NULL. */
typedef struct {
    int abs_sum;
    int64_t *few;
    Tables *tables;
} Also;

/* Chan, Golub and LeVeque, as in row.py. The numbers of a row lie `apart` from each other. */
PART_OF_CALLER void merge_apart(double *RESTRICT row, const double *RESTRICT other, size_t apart)
{
    const size_t count = COUNT * apart, mean = MEAN * apart, m2 = M2 * apart, min = MIN * apart, max = MAX * apart;
    double whole = row[count] + other[count], away = other[mean] - row[mean];
    double share = other[count] / (whole > 1 ? whole : 1);
    row[m2] += other[m2] + away * away * row[count] * share;
    row[mean] += away * share;
    row[count] = whole;
    for (size_t f = ABS_SUM * apart; f < min; f += apart)
        row[f] += other[f];
    row[min] = other[min] < row[min] ? other[min] : row[min];
    row[max] = other[max] > row[max] ? other[max] : row[max];
}

static void merge(double *row, const double *other)
{
    merge_apart(row, other, 1);
}

/* Sums become the columns of a row. */
static void finish(double *row)
{
    double at_least_one = fmax(row[COUNT], 1);
    row[M2] = sqrt(row[M2] / at_least_one);
    row[ABS_SUM] /= at_least_one;
}

/* The columns of some rows. */
typedef double Columns[WIDTH][BESIDE];

FOR_EACH_PROCESSOR
static void merge_columns(Columns columns, Columns other, size_t channels)
{
    for (size_t c = 0; c < channels; c++)
        merge_apart(columns[0] + c, other[0] + c, BESIDE);
}

/* The same as add_chunk from the sums on, for n values of each channel. `again` says where that takes a second look. */
FOR_EACH_PROCESSOR
static void add_sums(Columns columns, const Sums *RESTRICT sums, size_t channels, double n, int64_t *RESTRICT again)
{
    double *RESTRICT count = columns[COUNT], *RESTRICT mean = columns[MEAN], *RESTRICT m2 = columns[M2];
    double *RESTRICT low = columns[MIN], *RESTRICT high = columns[MAX];
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

/* The row of all that the columns describe; then the columns themselves are finished. Those without values count too:
   with as many as there always are, the compiler vectorizes over them. */
FOR_EACH_PROCESSOR
static void row_of_columns(double *RESTRICT row, Columns columns)
{
    double lanes[MIN][LANES] = {{0}}, low[LANES], high[LANES];
    for (int j = 0; j < LANES; j++) {
        low[j] = INFINITY;
        high[j] = -INFINITY;
    }
    for (int c = 0; c < BESIDE; c += LANES) {
        for (int f = COUNT; f < MIN; f++)
            for (int j = 0; f != MEAN && f != M2 && j < LANES; j++)
                lanes[f][j] += columns[f][c + j];
        for (int j = 0; j < LANES; j++) {
            lanes[MEAN][j] += columns[COUNT][c + j] * columns[MEAN][c + j];
            low[j] = columns[MIN][c + j] < low[j] ? columns[MIN][c + j] : low[j];
            high[j] = columns[MAX][c + j] > high[j] ? columns[MAX][c + j] : high[j];
        }
    }
    memcpy(row, EMPTY, sizeof EMPTY);
    for (int j = 0; j < LANES; j++) {
        for (int f = COUNT; f < MIN; f++)
            row[f] += lanes[f][j];
        row[MIN] = low[j] < row[MIN] ? low[j] : row[MIN];
        row[MAX] = high[j] > row[MAX] ? high[j] : row[MAX];
    }
    row[MEAN] /= fmax(row[COUNT], 1); /* so far the sum */
    double mean = row[MEAN], squares[LANES] = {0};
    for (int c = 0; c < BESIDE; c += LANES) {
        for (int j = 0; j < LANES; j++) {
            double away = columns[MEAN][c + j] - mean, count = columns[COUNT][c + j];
            double share = 1 / (count > 1 ? count : 1);
            squares[j] += columns[M2][c + j] + away * away * count;
            columns[M2][c + j] = sqrt(columns[M2][c + j] * share);
            columns[ABS_SUM][c + j] *= share;
        }
    }
    for (int j = 0; j < LANES; j++)
        row[M2] += squares[j];
}

/* A tensor: values of shape (outer, channels, inner), where `channels` is 0 if only the row of all is wanted. The runs
   of `inner` values begin `apart` values apart; there are no gaps unless `outer` is 1 or `channels` is 0. What lies at
   `minus`, without gaps, is subtracted first, unless that is 0; then there are no channels. Each `every`-th channel has
   a row.

   It is cut in pieces by its shape alone, and what is found in these is merged in their order: so the result does not
   depend on the number of threads. A piece is `channels_each` channels of `outer_each` parts of the first dimension, or
   `values_each` values if no channels are wanted; `across` pieces have all channels. */
typedef struct {
    const void *x, *minus;
    int type;
    size_t outer, channels, inner, apart, every;
    size_t pieces, across, channels_each, outer_each, values_each;
    double *row, (*rows)[WIDTH];
    double *found; /* of the pieces, one after the other: a row, or Columns where a channel is in several pieces */
} Job;

/* In values that take as long. */
static size_t effort_of(const Job *job)
{
    size_t runs = job->channels ? job->outer * job->channels : job->outer;
    return TENSOR + runs * job->inner + CHANNEL * job->channels;
}

/* Whether the first dimension is cut. */
static int has_channel_in_several(const Job *job)
{
    return job->channels && job->outer_each < job->outer;
}

static size_t numbers_found(const Job *job)
{
    return has_channel_in_several(job) ? sizeof(Columns) / sizeof(double) : WIDTH;
}

static void cut(Job *job)
{
    size_t wanted = least(effort_of(job) / PIECE, MOST);
    wanted = wanted ? wanted : 1;
    job->across = 1;
    if (job->channels) {
        size_t least_each = job->inner < LANES ? BESIDE : least(divided_up(RUN, job->inner), BESIDE);
        size_t each = divided_up(job->channels, wanted);
        each = each < least_each ? least_each : each;
        job->channels_each = each > BESIDE ? divided_up(each, BESIDE) * BESIDE : each;
        job->across = divided_up(job->channels, job->channels_each);
        size_t groups = least(wanted / (2 * job->across), job->outer); /* half as many: these are to be merged */
        job->outer_each = groups > 1 ? divided_up(job->outer, groups) : job->outer;
        job->pieces = job->across * (groups > 1 ? divided_up(job->outer, job->outer_each) : 1);
    } else {
        size_t values = job->outer * job->inner;
        job->values_each = divided_up(divided_up(values, wanted), CHUNK) * CHUNK;
        job->pieces = values ? divided_up(values, job->values_each) : 1;
    }
}

/* Writes the rows of channels from `first` on, and merges them into the row of all. */
static void keep(const Job *job, double *row, Columns columns, size_t first, size_t channels)
{
    double block[WIDTH];
    size_t next = divided_up(first, job->every); /* the first of these that has a row */
    double(*kept)[WIDTH] = job->rows + next;
    row_of_columns(block, columns);
    merge(row, block);
    for (size_t c = next * job->every - first; c < channels; c += job->every, kept++)
        for (int f = 0; f < WIDTH; f++)
            (*kept)[f] = columns[f][c];
}

PART_OF_CALLER uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

PART_OF_CALLER uint64_t wide_bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

PART_OF_CALLER uint32_t bin_of(float single)
{
    return bits_of(single) >> SHIFT;
}

PART_OF_CALLER float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

PART_OF_CALLER float of_bfloat16(uint16_t stored)
{
    return float_of((uint32_t)stored << 16);
}

/* All ones where the condition holds. */
PART_OF_CALLER uint32_t mask_of(int condition)
{
    return -(uint32_t)condition;
}

/* By masks, as a branch would not be vectorized; and without subnormal numbers, which torch may have switched off. */
PART_OF_CALLER float of_float16(uint16_t stored)
{
    const uint32_t smallest = 1u << 23, special = 31u << 23; /* that is normal, that is NaN or infinite */
    uint32_t moved = (stored & 0x7fffu) << 13;
    uint32_t is_subnormal = mask_of(moved < smallest);
    uint32_t subnormal = bits_of(float_of(moved + (113u << 23)) - 0x1p-14f);
    uint32_t bits = moved + (112u << 23) + (mask_of(moved >= special) & (112u << 23));
    bits |= mask_of(moved > special) & 0x400000u; /* NaN becomes quiet, as in torch */
    return float_of((bits & ~is_subnormal) | (subnormal & is_subnormal) | (uint32_t)(stored & 0x8000u) << 16);
}

/* As in row.py: cut to the bits that name the bin, and what is beyond float32 into the outermost one. */
PART_OF_CALLER float single_of(double value)
{
    double kept, largest = FLT_MAX;
    uint64_t bits = wide_bits_of(value) & ~(((uint64_t)1 << (SHIFT + 29)) - 1);
    memcpy(&kept, &bits, sizeof kept);
    if (!isfinite(value))
        return (float)value;
    return (float)(kept > largest ? largest : kept < -largest ? -largest : kept);
}

#define STORED float
#define VALUE float
#define TALLY int32_t
#define VALUE_OF(s) (s)
#define SINGLE_OF(v) (v)
#define IS_IN_PLACE 1
#define NAME(f) f##_float32
#include "_native_values.h"

#define STORED double
#define VALUE double
#define TALLY int64_t
#define VALUE_OF(s) (s)
#define SINGLE_OF(v) single_of(v)
#define IS_IN_PLACE 1
#define NAME(f) f##_float64
#include "_native_values.h"

#define STORED uint16_t
#define VALUE float
#define TALLY int32_t
#define VALUE_OF(s) of_bfloat16(s)
#define SINGLE_OF(v) (v)
#define IS_IN_PLACE 0
#define NAME(f) f##_bfloat16
#include "_native_values.h"

#define STORED uint16_t
#define VALUE float
#define TALLY int32_t
#define VALUE_OF(s) of_float16(s)
#define SINGLE_OF(v) (v)
#define IS_IN_PLACE 0
#define NAME(f) f##_float16
#include "_native_values.h"

typedef struct {
    void (*columns_of)(Columns, const Job *, size_t, size_t, size_t, size_t, const Also *);
    void (*add_values)(double *, const Job *, size_t, size_t, const Also *);
} Functions;

static const Functions OF[] = {
    [FLOAT32] = {columns_of_float32, add_values_float32},
    [FLOAT64] = {columns_of_float64, add_values_float64},
    [BFLOAT16] = {columns_of_bfloat16, add_values_bfloat16},
    [FLOAT16] = {columns_of_float16, add_values_float16},
};

static void do_piece(const Job *job, size_t piece, const Also *also)
{
    double *found = job->found + piece * numbers_found(job);
    if (has_channel_in_several(job)) {
        size_t first = piece % job->across * job->channels_each, begin = piece / job->across * job->outer_each;
        OF[job->type].columns_of((double (*)[BESIDE])found, job, first,
                                 least(job->channels - first, job->channels_each), begin,
                                 least(begin + job->outer_each, job->outer), also);
        return;
    }
    memcpy(found, EMPTY, sizeof EMPTY);
    if (job->channels) {
        size_t first = piece * job->channels_each, end = least(first + job->channels_each, job->channels);
        for (Columns columns; first < end; first += BESIDE) {
            size_t channels = least(end - first, BESIDE);
            OF[job->type].columns_of(columns, job, first, channels, 0, job->outer, also);
            keep(job, found, columns, first, channels);
        }
        return;
    }
    size_t begin = piece * job->values_each, end = least(begin + job->values_each, job->outer * job->inner);
    if (begin < end)
        OF[job->type].add_values(found, job, begin, end, also);
}

static void join_pieces(const Job *job)
{
    if (has_channel_in_several(job)) {
        Columns *columns = (Columns *)job->found;
        memcpy(job->row, EMPTY, sizeof EMPTY);
        for (size_t k = 0; k < job->across; k++) {
            size_t first = k * job->channels_each, channels = least(job->channels - first, job->channels_each);
            for (size_t piece = k + job->across; piece < job->pieces; piece += job->across)
                merge_columns(columns[k], columns[piece], channels);
            keep(job, job->row, columns[k], first, channels);
        }
    } else if (job->found != job->row) {
        memcpy(job->row, job->found, sizeof EMPTY);
        for (size_t piece = 1; piece < job->pieces; piece++)
            merge(job->row, job->found + piece * WIDTH);
    }
    finish(job->row);
}

/* Adds what the tables hold to the counts. Most bins hold nothing: it is looked at many at once. */
FOR_EACH_PROCESSOR static void add_tables(int64_t *counts, const Tables *tables)
{
    for (int first = 0; first < BINS; first += BESIDE) {
        uint32_t any = 0;
        for (int bin = first; bin < first + BESIDE; bin++)
            any |= tables->even[bin] | tables->odd[bin];
        for (int bin = first; any && bin < first + BESIDE; bin++) {
            int64_t found = (int64_t)tables->even[bin] + tables->odd[bin];
            if (found)
                add_to(counts + bin, found);
        }
    }
}

typedef struct {
    const Job *job;
    size_t next;
    int with_abs_sum, are_few;
    int64_t *counts; /* of the bins of all values; NULL if they are not wanted */
} Pieces;

/* What one thread does: takes pieces until there are none. */
static void do_pieces(void *argument)
{
    Pieces *all = argument;
    Tables tables;
    Also also = {.abs_sum = all->with_abs_sum};
    if (all->counts && all->are_few) {
        also.few = all->counts;
    } else if (all->counts) {
        memset(&tables, 0, sizeof tables);
        also.tables = &tables;
    }
    for (size_t piece; (piece = take_next(&all->next)) < all->job->pieces;) {
        do_piece(all->job, piece, &also);
        if (also.tables && tables.counted > INT32_MAX) {
            add_tables(all->counts, &tables);
            memset(&tables, 0, sizeof tables);
        }
    }
    if (also.tables)
        add_tables(all->counts, &tables);
}

/* Fills the rows of the job, and adds the bins of its values to the counts, unless these are NULL. Returns 0 and sets an
   exception if there is no memory for that. */
static int do_job(Job *job, int with_abs_sum, int64_t *counts, int threads)
{
    cut(job);
    size_t effort = effort_of(job);
    Pieces all = {.job = job, .with_abs_sum = with_abs_sum, .are_few = effort < FEW, .counts = counts};
    job->found = job->row;
    if (effort < ENOUGH && job->pieces == 1) {
        do_pieces(&all);
        join_pieces(job);
        return 1;
    }
    double *found = malloc(job->pieces * numbers_found(job) * sizeof *found);
    if (!found) {
        PyErr_NoMemory();
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    if (job->pieces > 1)
        job->found = found;
    in_threads(do_pieces, &all, effort < ENOUGH ? 1 : threads);
    join_pieces(job);
    free(found);
    Py_END_ALLOW_THREADS
    return 1;
}

/* Chan, Golub and LeVeque, for two finished rows: those of a site's earlier tensors, and of this one. */
static void merge_finished(double *row, const double *other)
{
    double whole = row[COUNT] + other[COUNT], share = other[COUNT] / (whole > 1 ? whole : 1);
    if (share == 1) {
        memcpy(row + MEAN, other + MEAN, (ZEROS - MEAN) * sizeof *row);
    } else if (share > 0) {
        double away = other[MEAN] - row[MEAN], rest = 1 - share;
        row[M2] = sqrt(row[M2] * row[M2] * rest + other[M2] * other[M2] * share + away * away * share * rest);
        row[MEAN] += away * share;
        row[ABS_SUM] += (other[ABS_SUM] - row[ABS_SUM]) * share;
    }
    row[COUNT] = whole;
    for (int f = ZEROS; f < MIN; f++)
        row[f] += other[f];
    row[MIN] = other[MIN] < row[MIN] ? other[MIN] : row[MIN];
    row[MAX] = other[MAX] > row[MAX] ? other[MAX] : row[MAX];
}

static PyObject *measure_into(PyObject *module, PyObject *args)
{
    Py_ssize_t address, minus, counts, rows, outer, channels, inner, apart, every;
    int type, is_fresh, with_abs_sum, threads;
    if (!PyArg_ParseTuple(args, "nnnnpi(innnnnp)", &address, &minus, &counts, &rows, &is_fresh, &threads, &type, &outer,
                          &channels, &inner, &apart, &every, &with_abs_sum))
        return NULL;
    double (*into)[WIDTH] = (double (*)[WIDTH])rows, (*found)[WIDTH] = into, few[1][WIDTH];
    size_t count = 1 + (channels ? divided_up((size_t)channels, (size_t)every) : 0);
    if (!is_fresh)
        found = count > 1 ? PyMem_Malloc(count * sizeof *found) : few;
    if (!found)
        return PyErr_NoMemory();
    Job job = {.x = (const void *)address, .minus = (const void *)minus, .type = type, .outer = (size_t)outer,
               .channels = (size_t)channels, .inner = (size_t)inner, .apart = (size_t)apart, .every = (size_t)every,
               .row = found[0], .rows = found + 1};
    int is_done = do_job(&job, with_abs_sum, (int64_t *)counts, threads);
    for (size_t k = 0; is_done && found != into && k < count; k++)
        merge_finished(into[k], found[k]);
    if (found != into && found != few)
        PyMem_Free(found);
    if (!is_done)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"measure_into", measure_into, METH_VARARGS,
     "measure_into(address, minus, counts, rows, is_fresh, threads, (type, outer, channels, inner, apart, every, "
     "with_abs_mean)): measures a tensor, see Job, and merges it into its row and those of its channels, which follow; where "
     "these hold nothing yet (is_fresh), they are overwritten. The bins of the values are added to `counts`, unless 0."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    find_threads();
    return PyModule_Create(&definition);
}
