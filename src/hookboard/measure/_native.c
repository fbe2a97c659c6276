/* One pass over float32 values where torch needs five. Optional: without it cpu.py does the same with torch's own
   operations. Tensors come as the address of their first value: native.py, the only caller, has looked at each and
   holds it alive. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

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

#define LANES 16
#define CHUNK 4096 /* values that stay in the fastest cache for a second look */
#define AHEAD 512  /* values */
#define BESIDE 64  /* channels that are worked on together */
#define SHIFT 19   /* as in bins.py */
#define BINS 8192

#define ENOUGH 65536    /* values that are worth more than one thread */
#define PIECE 16384     /* values that one thread takes at once */
#define MOST 128        /* pieces of one tensor */
#define RUN (4 * AHEAD) /* values of a piece that are one after the other: FETCH goes beyond the last ones in vain */
#define CHANNEL 128     /* values that take as long as to finish the row of a channel */
#define TENSOR 512      /* values that take as long as to begin with another tensor */

static const double CANCELLATION = 1e-6; /* as in cpu.py */

enum { COUNT, MEAN, M2, ABS_SUM, ZEROS, NANS, POSINF, NEGINF, MIN, MAX, WIDTH }; /* as in row.py */

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

/* Chan, Golub and LeVeque, as in merge.py. The numbers of a row lie `apart` from each other. */
PART_OF_CALLER void merge_apart(double *restrict row, const double *restrict other, size_t apart)
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

FOR_EACH_PROCESSOR
static void merge_columns(Columns columns, Columns other, size_t channels)
{
    for (size_t c = 0; c < channels; c++)
        merge_apart(columns[0] + c, other[0] + c, BESIDE);
}

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
static void row_of_columns(double *row, Columns columns, size_t channels)
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

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t divided_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* A tensor: values of shape (outer, channels, inner), where `channels` is 0 if only the row of all is wanted. The runs
   of `inner` values begin `apart` values apart; there are no gaps unless `outer` is 1 or `channels` is 0. What lies at
   `minus`, without gaps, is subtracted first, unless that is 0; then there are no channels.

   It is cut in pieces by its shape alone, and what is found in these is merged in their order: so the result does not
   depend on the number of threads. A piece is `channels_each` channels of `outer_each` parts of the first dimension, or
   `values_each` values if no channels are wanted; `across` pieces have all channels. */
typedef struct {
    const float *x, *minus;
    size_t outer, channels, inner, apart;
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

/* The columns of at most BESIDE channels from `first` on, of the runs from `begin` to `end`. */
static void columns_of(Columns columns, const Job *job, size_t first, size_t channels, size_t begin, size_t end,
                       int with_abs_sum)
{
    size_t inner = job->inner;
    size_t together = inner < LANES ? CHUNK / LANES : inner < CHUNK ? CHUNK / inner : 1;
    Part part = {.channels = channels, .stride = job->channels * job->apart, .apart = job->apart};
    for (int f = 0; f < WIDTH; f++)
        for (size_t c = 0; c < channels; c++)
            columns[f][c] = EMPTY[f];
    for (size_t o = begin; o < end; o += together) {
        part.rows = least(end - o, together);
        for (size_t i = 0; i < inner; i += CHUNK) {
            part.width = least(inner - i, CHUNK);
            part.x = job->x + o * part.stride + first * job->apart + i;
            add_part(columns, &part, part.stride - first * job->apart, with_abs_sum);
        }
    }
}

/* Writes the rows of channels from `first` on, and merges them into the row of all. */
static void keep(const Job *job, double *row, Columns columns, size_t first, size_t channels)
{
    double block[WIDTH];
    row_of_columns(block, columns, channels);
    merge(row, block);
    for (size_t k = 0; k < channels; k++) {
        for (int f = 0; f < WIDTH; f++)
            job->rows[first + k][f] = columns[f][k];
        finish(job->rows[first + k]);
    }
}

/* Values that are one after the other. */
static void add_values(double *row, const float *x, size_t count, int with_abs_sum)
{
    for (size_t i = 0; i < count; i += CHUNK)
        add_chunk(row, x + i, least(count - i, CHUNK), with_abs_sum);
}

/* Differences, or values with gaps, from `begin` to `end`. */
FOR_EACH_PROCESSOR
static void add_runs(double *row, const Job *job, size_t begin, size_t end, int with_abs_sum)
{
    float chunk[CHUNK];
    size_t i = begin % job->inner; /* in its run */
    const float *x = job->x + begin / job->inner * job->apart, *minus = job->minus ? job->minus + begin - i : NULL;
    for (size_t used = 0, here; begin < end; begin += here) {
        here = least(least(job->inner - i, CHUNK - used), end - begin);
        for (size_t k = 0; k < here; k++)
            chunk[used + k] = minus ? x[i + k] - minus[i + k] : x[i + k];
        used += here;
        i += here;
        if (used == CHUNK || begin + here == end) {
            add_chunk(row, chunk, used, with_abs_sum);
            used = 0;
        }
        if (i == job->inner) {
            i = 0;
            x += job->apart;
            minus = minus ? minus + job->inner : NULL;
        }
    }
}

static void do_piece(const Job *job, size_t piece, int with_abs_sum)
{
    double *found = job->found + piece * numbers_found(job);
    if (has_channel_in_several(job)) {
        size_t first = piece % job->across * job->channels_each, begin = piece / job->across * job->outer_each;
        columns_of((double (*)[BESIDE])found, job, first, least(job->channels - first, job->channels_each), begin,
                   least(begin + job->outer_each, job->outer), with_abs_sum);
        return;
    }
    memcpy(found, EMPTY, sizeof EMPTY);
    if (job->channels) {
        size_t first = piece * job->channels_each, end = least(first + job->channels_each, job->channels);
        for (Columns columns; first < end; first += BESIDE) {
            size_t channels = least(end - first, BESIDE);
            columns_of(columns, job, first, channels, 0, job->outer, with_abs_sum);
            keep(job, found, columns, first, channels);
        }
        return;
    }
    size_t begin = piece * job->values_each, end = least(begin + job->values_each, job->outer * job->inner);
    if (begin < end && (job->minus || job->outer > 1))
        add_runs(found, job, begin, end, with_abs_sum);
    else
        add_values(found, job->x + begin, end - begin, with_abs_sum);
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

/* What one thread takes at once: a piece of a large job, or some small jobs. */
typedef struct {
    const Job *first, *end;
    size_t piece;
} Task;

typedef struct {
    const Task *tasks;
    size_t count, next;
    int with_abs_sum;
} Tasks;

static void do_tasks(void *argument)
{
    Tasks *all = argument;
    for (size_t k; (k = take_next(&all->next)) < all->count;)
        for (const Job *job = all->tasks[k].first; job < all->tasks[k].end; job++)
            do_piece(job, all->tasks[k].piece, all->with_abs_sum);
}

/* There are at most as many tasks as pieces; returns how many. */
static size_t fill_tasks(Task *tasks, const Job *jobs, const Job *end)
{
    size_t count = 0, gathered = PIECE;
    for (const Job *job = jobs; job < end; job++) {
        size_t effort = effort_of(job);
        if (job->pieces == 1 && gathered + effort <= PIECE) {
            tasks[count - 1].end = job + 1;
            gathered += effort;
            continue;
        }
        for (size_t piece = 0; piece < job->pieces; piece++)
            tasks[count++] = (Task){job, job + 1, piece};
        gathered = job->pieces == 1 ? effort : PIECE;
    }
    return count;
}

/* Fills the rows of all jobs; returns 0 if there is no memory for that. */
static int do_jobs(Job *jobs, size_t count, int with_abs_sum, int threads)
{
    size_t pieces = 0, numbers = 0, effort = 0;
    for (Job *job = jobs; job < jobs + count; job++) {
        cut(job);
        effort += effort_of(job);
        pieces += job->pieces;
        numbers += job->pieces > 1 ? job->pieces * numbers_found(job) : 0;
        job->found = job->row;
    }
    if (effort < ENOUGH && !numbers) {
        for (Job *job = jobs; job < jobs + count; job++) {
            do_piece(job, 0, with_abs_sum);
            join_pieces(job);
        }
        return 1;
    }
    double *found = malloc(numbers * sizeof *found + pieces * sizeof(Task));
    if (!found)
        return 0;
    Task *tasks = (Task *)(found + numbers);
    double *free_from = found;
    for (Job *job = jobs; job < jobs + count; job++) {
        if (job->pieces > 1) {
            job->found = free_from;
            free_from += job->pieces * numbers_found(job);
        }
    }
    Tasks all = {.tasks = tasks, .count = fill_tasks(tasks, jobs, jobs + count), .with_abs_sum = with_abs_sum};
    in_threads(do_tasks, &all, effort < ENOUGH ? 1 : threads);
    for (Job *job = jobs; job < jobs + count; job++)
        join_pieces(job);
    free(found);
    return 1;
}

static int do_jobs_unlocked(Job *jobs, size_t count, int with_abs_sum, int threads)
{
    int is_done;
    Py_BEGIN_ALLOW_THREADS
    is_done = do_jobs(jobs, count, with_abs_sum, threads);
    Py_END_ALLOW_THREADS
    if (!is_done)
        PyErr_NoMemory();
    return is_done;
}

static PyObject *as_list(const double *row)
{
    return Py_BuildValue("[dddddddddd]", row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8],
                         row[9]);
}

static PyObject *measure(PyObject *module, PyObject *args)
{
    Py_ssize_t address, count;
    int with_abs_sum, threads;
    if (!PyArg_ParseTuple(args, "nnpi", &address, &count, &with_abs_sum, &threads))
        return NULL;
    double row[WIDTH];
    Job job = {.x = (const float *)address, .outer = 1, .inner = (size_t)count, .apart = (size_t)count, .row = row};
    return do_jobs_unlocked(&job, 1, with_abs_sum, threads) ? as_list(row) : NULL;
}

static PyObject *measure_channels(PyObject *module, PyObject *args)
{
    Py_ssize_t address, outer, channels, inner;
    int with_abs_sum, threads;
    if (!PyArg_ParseTuple(args, "nnnnpi", &address, &outer, &channels, &inner, &with_abs_sum, &threads))
        return NULL;
    double row[WIDTH];
    PyObject *rows = PyByteArray_FromStringAndSize(NULL, channels * (Py_ssize_t)sizeof row);
    if (!rows)
        return NULL;
    Job job = {.x = (const float *)address, .outer = (size_t)outer, .channels = (size_t)channels,
               .inner = (size_t)inner, .apart = (size_t)inner, .row = row,
               .rows = (double (*)[WIDTH])PyByteArray_AsString(rows)};
    if (do_jobs_unlocked(&job, 1, with_abs_sum, threads))
        return Py_BuildValue("NN", as_list(row), rows);
    Py_DECREF(rows);
    return NULL;
}

static int read_job(PyObject *list, Py_ssize_t i, Job *job)
{
    PyObject *item = PyList_GetItem(list, i);
    Py_ssize_t address, minus, outer, channels, inner, apart;
    if (!item || !PyArg_ParseTuple(item, "nnnnnn", &address, &minus, &outer, &channels, &inner, &apart))
        return 0;
    *job = (Job){.x = (const float *)address, .minus = (const float *)minus, .outer = (size_t)outer,
                 .channels = (size_t)channels, .inner = (size_t)inner, .apart = (size_t)apart};
    return 1;
}

static PyObject *measure_all(PyObject *module, PyObject *args)
{
    PyObject *list, *all = NULL, *each = NULL, *result = NULL;
    int with_abs_sum, threads;
    if (!PyArg_ParseTuple(args, "Opi", &list, &with_abs_sum, &threads))
        return NULL;
    Py_ssize_t count = PyList_Size(list), channels = 0;
    Job *jobs = count < 0 ? NULL : PyMem_Malloc((size_t)count * sizeof *jobs);
    if (!jobs)
        return count < 0 ? NULL : PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_job(list, i, jobs + i))
            goto done;
        channels += (Py_ssize_t)jobs[i].channels;
    }
    all = PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof EMPTY);
    each = all ? PyByteArray_FromStringAndSize(NULL, channels * (Py_ssize_t)sizeof EMPTY) : NULL;
    if (!each)
        goto done;
    double (*row)[WIDTH] = (double (*)[WIDTH])PyByteArray_AsString(all);
    double (*rows)[WIDTH] = (double (*)[WIDTH])PyByteArray_AsString(each);
    for (Job *job = jobs; job < jobs + count; rows += job->channels, job++) {
        job->row = *row++;
        job->rows = rows;
    }
    if (do_jobs_unlocked(jobs, (size_t)count, with_abs_sum, threads))
        result = Py_BuildValue("OO", all, each);
done:
    PyMem_Free(jobs);
    Py_XDECREF(all);
    Py_XDECREF(each);
    return result;
}

static inline uint32_t bin_of(const float *value)
{
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    return bits >> SHIFT;
}

typedef struct {
    int64_t *counts;
    const float *x;
    size_t count, next;
} Counting;

/* Neighbours are often equal, and to count twice in one place is to wait for the first: hence two tables. */
typedef struct {
    uint32_t even[BINS], odd[BINS];
} Tables;

static void add_tables(int64_t *counts, Tables *tables)
{
    for (int bin = 0; bin < BINS; bin++) {
        int64_t found = (int64_t)tables->even[bin] + tables->odd[bin];
        if (found)
            add_to(counts + bin, found);
    }
    memset(tables, 0, sizeof *tables);
}

static void count_pieces(void *argument)
{
    Counting *all = argument;
    Tables tables;
    uint32_t counted = 0;
    memset(&tables, 0, sizeof tables);
    for (size_t from; (from = take_next(&all->next) * PIECE) < all->count; counted += PIECE) {
        const float *x = all->x + from;
        size_t i = 0, end = least(all->count - from, PIECE);
        for (; i + 2 <= end; i += 2) {
            tables.even[bin_of(x + i)]++;
            tables.odd[bin_of(x + i + 1)]++;
        }
        if (i < end)
            tables.even[bin_of(x + i)]++;
        if (counted > INT32_MAX) {
            add_tables(all->counts, &tables);
            counted = 0;
        }
    }
    add_tables(all->counts, &tables);
}

static PyObject *count_into(PyObject *module, PyObject *args)
{
    Py_ssize_t counts, address, count;
    int threads;
    if (!PyArg_ParseTuple(args, "nnni", &counts, &address, &count, &threads))
        return NULL;
    Counting all = {.counts = (int64_t *)counts, .x = (const float *)address, .count = (size_t)count};
    Py_BEGIN_ALLOW_THREADS
    in_threads(count_pieces, &all, all.count < ENOUGH ? 1 : threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

FOR_EACH_PROCESSOR
static int has_special(const uint32_t *x, size_t count)
{
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++)
        found |= (x[i] & 0x7f800000u) == 0x7f800000u;
    return (int)found;
}

static PyObject *are_finite(PyObject *module, PyObject *args)
{
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O", &list))
        return NULL;
    Py_ssize_t length = PyList_Size(list);
    if (length < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < length; i++) {
        Py_ssize_t address, count;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "nn", &address, &count))
            return NULL;
        if (has_special((const uint32_t *)address, (size_t)count))
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"measure", measure, METH_VARARGS, "measure(address, count, with_abs_mean, threads): the row of float32 values."},
    {"measure_channels", measure_channels, METH_VARARGS,
     "measure_channels(address, outer, channels, inner, with_abs_mean, threads): the row of float32 values of shape "
     "(outer, channels, inner), and the memory of the rows of the channels."},
    {"measure_all", measure_all, METH_VARARGS,
     "measure_all([(address, minus, outer, channels, inner, apart), ...], with_abs_mean, threads): the memory of the "
     "rows of several tensors, and that of the rows of their channels, see Job."},
    {"count_into", count_into, METH_VARARGS,
     "count_into(counts, address, count, threads): count float32 values into bins."},
    {"are_finite", are_finite, METH_VARARGS,
     "are_finite([(address, count), ...]): whether no float32 value is NaN or infinite."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    find_threads();
    return PyModule_Create(&definition);
}
