/* Sums over values of one type. Included by _native.c once for each type, with these macros:

   STORED         the type in memory
   VALUE          the type that is computed with, float or double
   TALLY          an integer as wide as VALUE
   VALUE_OF(s)    the value of what is stored
   SINGLE_OF(v)   the float32 in the same bin as the value, see row.py
   IS_IN_PLACE    1 if what is stored is the value, which is then read where it lies
   NAME(f)        the name of function f for this type

   What is not in place is copied first, as VALUE: a chunk at a time, which stays in the fastest cache. */

/* Sums of values that lie LANES apart. */
typedef struct {
    double sum[LANES], squares[LANES], abs_sum[LANES];
    VALUE min[LANES], max[LANES];
    TALLY zeros[LANES];
} NAME(Lanes);

PART_OF_CALLER void NAME(add_value)(NAME(Lanes) *lanes, int j, VALUE value)
{
    double wide = value;
    lanes->sum[j] += wide;
    lanes->squares[j] += wide * wide;
    lanes->min[j] = value < lanes->min[j] ? value : lanes->min[j];
    lanes->max[j] = value > lanes->max[j] ? value : lanes->max[j];
    lanes->zeros[j] += value == 0;
}

PART_OF_CALLER NAME(Lanes) NAME(no_lanes)(void)
{
    NAME(Lanes) lanes;
    for (int j = 0; j < LANES; j++) {
        lanes.sum[j] = lanes.squares[j] = lanes.abs_sum[j] = 0;
        lanes.min[j] = (VALUE)INFINITY;
        lanes.max[j] = -(VALUE)INFINITY;
        lanes.zeros[j] = 0;
    }
    return lanes;
}

/* Adds rows of `width` values, a multiple of LANES. */
PART_OF_CALLER void NAME(add_rows)(NAME(Lanes) *lanes, const VALUE *RESTRICT x, size_t rows, size_t width,
                                   size_t stride, int with_abs_sum)
{
    int is_scattered = rows > 1 && width < AHEAD; /* the processor does not foresee which memory is needed next */
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < width; i += LANES) {
            if (is_scattered)
                FETCH(x + r * stride + i + AHEAD);
            for (int j = 0; j < LANES; j++)
                NAME(add_value)(lanes, j, x[r * stride + i + j]);
        }
    }
    if (with_abs_sum)
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < width; i += LANES)
                for (int j = 0; j < LANES; j++)
                    lanes->abs_sum[j] += fabs((double)x[r * stride + i + j]);
}

/* The sums of one channel. */
PART_OF_CALLER void NAME(sum_up_one)(Sums *RESTRICT sums, size_t c, const VALUE *RESTRICT x, size_t rows, size_t width,
                                     size_t stride, int with_abs_sum)
{
    size_t whole = width - width % LANES;
    NAME(Lanes) lanes = NAME(no_lanes)();
    NAME(add_rows)(&lanes, x, rows, whole, stride, with_abs_sum);
    int j = 0;
    for (size_t r = 0; whole < width && r < rows; r++) {
        for (size_t i = whole; i < width; i++, j = (j + 1) % LANES) { /* none waits for the one before */
            VALUE value = x[r * stride + i];
            NAME(add_value)(&lanes, j, value);
            lanes.abs_sum[j] += with_abs_sum ? fabs((double)value) : 0;
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
    sums->zeros[c] = (double)lanes.zeros[0];
    sums->min[c] = lanes.min[0];
    sums->max[c] = lanes.max[0];
}

/* Copies rows of `width` values, so that they lie one after the other. */
PART_OF_CALLER void NAME(copy_rows)(VALUE *RESTRICT to, const STORED *RESTRICT x, size_t rows, size_t width,
                                    size_t stride)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            to[r * width + i] = VALUE_OF(x[r * stride + i]);
}

/* Neighbours are often equal, and to count twice in one place is to wait for the first: hence two tables. */
static void NAME(count)(const Also *also, const VALUE *x, size_t count)
{
    size_t i = 0;
    if (also->few) {
        for (; i < count; i++)
            also->few[bin_of(SINGLE_OF(x[i]))]++;
        return;
    }
    also->tables->counted += count;
    for (; i + 2 <= count; i += 2) {
        also->tables->even[bin_of(SINGLE_OF(x[i]))]++;
        also->tables->odd[bin_of(SINGLE_OF(x[i + 1]))]++;
    }
    if (i < count)
        also->tables->even[bin_of(SINGLE_OF(x[i]))]++;
}

PART_OF_CALLER void NAME(count_rows)(const Also *also, const VALUE *x, size_t rows, size_t width, size_t stride)
{
    if (also->few || also->tables)
        for (size_t r = 0; r < rows; r++)
            NAME(count)(also, x + r * stride, width);
}

/* One channel after the other. */
FOR_EACH_PROCESSOR
static void NAME(sum_up)(Sums *RESTRICT sums, const Part *RESTRICT part, const Also *also)
{
    VALUE copy[CHUNK];
    for (size_t c = 0; c < part->channels; c++) {
        const STORED *stored = (const STORED *)part->x + c * part->apart;
        const VALUE *x = (const VALUE *)stored;
        size_t rows = part->rows, width = part->width;
        /* Over gaps between channels the processor does not foresee which memory is needed next. */
        for (size_t i = 0; part->apart > width && rows == 1 && i < width; i += 64 / sizeof *stored)
            FETCH(stored + divided_up(FAR, width) * part->apart + i);
        if (!IS_IN_PLACE) {
            NAME(copy_rows)(copy, stored, rows, width, part->stride);
            x = copy;
            width *= rows;
            rows = 1;
        }
        NAME(sum_up_one)(sums, c, x, rows, width, part->stride, also->abs_sum);
        NAME(count_rows)(also, x, rows, width, part->stride);
    }
}

/* The same as sum_up for few values of each channel: the channels lie side by side, so that there are no lanes to add up
   in the end. Where they do not, the values are copied. */
FOR_EACH_PROCESSOR
static void NAME(sum_up_beside)(Sums *RESTRICT sums, const Part *RESTRICT part, const Also *also)
{
    VALUE copy[WIDE];
    const VALUE *x = (const VALUE *)part->x;
    size_t values = part->rows * part->width, stride = part->stride;
    size_t across = divided_up(part->channels, LANES) * LANES;
    if (!IS_IN_PLACE || part->width > 1 || part->apart > 1 || part->channels < across) {
        for (size_t r = 0; r < part->rows; r++) {
            const STORED *row = (const STORED *)part->x + r * part->stride;
            for (size_t i = 0; i < part->width; i++) {
                VALUE *to = copy + (r * part->width + i) * BESIDE;
                for (size_t c = 0; c < part->channels; c++)
                    to[c] = VALUE_OF(row[c * part->apart + i]);
                for (size_t c = part->channels; c < across; c++)
                    to[c] = 0;
            }
        }
        x = copy;
        stride = BESIDE;
    }
    for (size_t c = 0; c < across; c += LANES) {
        NAME(Lanes) lanes = NAME(no_lanes)();
        NAME(add_rows)(&lanes, x + c, values, LANES, stride, also->abs_sum);
        for (int j = 0; j < LANES; j++) {
            sums->sum[c + j] = lanes.sum[j];
            sums->squares[c + j] = lanes.squares[j];
            sums->abs_sum[c + j] = lanes.abs_sum[j];
            sums->zeros[c + j] = (double)lanes.zeros[j];
            sums->min[c + j] = lanes.min[j];
            sums->max[c + j] = lanes.max[j];
        }
    }
    NAME(count_rows)(also, x, values, part->channels, stride);
}

/* The sums of at most CHUNK values that are one after the other. */
FOR_EACH_PROCESSOR
static void NAME(sum_up_chunk)(Sums *RESTRICT sums, const VALUE *RESTRICT x, size_t count, int with_abs_sum)
{
    NAME(sum_up_one)(sums, 0, x, 1, count, count, with_abs_sum);
}

FOR_EACH_PROCESSOR
static double NAME(squares_about)(double mean, const VALUE *RESTRICT x, size_t count)
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
static size_t NAME(finite_of)(const VALUE *x, size_t count, VALUE *finite, double *row)
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

/* Adds at most CHUNK values to a row that still has sums. */
static void NAME(add_chunk)(double *row, const VALUE *x, size_t count, int with_abs_sum)
{
    VALUE finite[CHUNK];
    Sums sums;
    NAME(sum_up_chunk)(&sums, x, count, with_abs_sum);
    if (!isfinite(*sums.squares)) {
        count = NAME(finite_of)(x, count, finite, row);
        if (!count)
            return;
        x = finite;
        NAME(sum_up_chunk)(&sums, x, count, with_abs_sum);
    }
    double n = (double)count, mean = *sums.sum / n, m2 = *sums.squares - *sums.sum * mean;
    if (m2 < CANCELLATION * *sums.squares)
        m2 = NAME(squares_about)(mean, x, count);

    double chunk[WIDTH] = {n, mean, m2, *sums.abs_sum, *sums.zeros, 0, 0, 0, *sums.min, *sums.max};
    merge(row, chunk);
}

static void NAME(add_part)(Columns columns, const Part *part, const Also *also)
{
    Sums sums;
    int64_t again[BESIDE];
    if (has_few(part))
        NAME(sum_up_beside)(&sums, part, also);
    else
        NAME(sum_up)(&sums, part, also);
    add_sums(columns, &sums, part->channels, (double)(part->rows * part->width), again);
    for (size_t c = 0; c < part->channels; c++) {
        if (!again[c])
            continue;
        VALUE values[CHUNK];
        double row[WIDTH];
        NAME(copy_rows)(values, (const STORED *)part->x + c * part->apart, part->rows, part->width, part->stride);
        for (int f = 0; f < WIDTH; f++)
            row[f] = columns[f][c];
        NAME(add_chunk)(row, values, part->rows * part->width, also->abs_sum);
        for (int f = 0; f < WIDTH; f++)
            columns[f][c] = row[f];
    }
}

/* The columns of at most BESIDE channels from `first` on, of the runs from `begin` to `end`. */
static void NAME(columns_of)(Columns columns, const Job *job, size_t first, size_t channels, size_t begin, size_t end,
                             const Also *also)
{
    size_t inner = job->inner;
    size_t together = inner < LANES ? divided_up(FEW_VALUES, inner) : inner < CHUNK ? CHUNK / inner : 1;
    Part part = {.channels = channels, .stride = job->channels * job->apart, .apart = job->apart};
    for (int f = 0; f < WIDTH; f++)
        for (int c = 0; c < BESIDE; c++)
            columns[f][c] = EMPTY[f];
    for (size_t o = begin; o < end; o += together) {
        part.rows = least(end - o, together);
        for (size_t i = 0; i < inner; i += CHUNK) {
            part.width = least(inner - i, CHUNK);
            part.x = (const STORED *)job->x + o * part.stride + first * job->apart + i;
            NAME(add_part)(columns, &part, also);
        }
    }
}

static void NAME(add_and_count)(double *row, const VALUE *x, size_t count, const Also *also)
{
    NAME(add_chunk)(row, x, count, also->abs_sum);
    NAME(count_rows)(also, x, 1, count, count);
}

/* Adds the values from `begin` to `end` to a row, one chunk after the other. */
FOR_EACH_PROCESSOR
static void NAME(add_values)(double *row, const Job *job, size_t begin, size_t end, const Also *also)
{
    VALUE chunk[CHUNK];
    size_t i = begin % job->inner; /* in its run */
    const STORED *x = (const STORED *)job->x + begin / job->inner * job->apart;
    const STORED *minus = job->minus ? (const STORED *)job->minus + begin - i : NULL;
    if (IS_IN_PLACE && !minus && job->outer == 1) {
        for (; begin < end; begin += CHUNK)
            NAME(add_and_count)(row, (const VALUE *)x + begin, least(end - begin, CHUNK), also);
        return;
    }
    for (size_t used = 0, here; begin < end; begin += here) {
        here = least(least(job->inner - i, CHUNK - used), end - begin);
        if (minus)
            for (size_t k = 0; k < here; k++)
                chunk[used + k] = VALUE_OF(x[i + k]) - VALUE_OF(minus[i + k]);
        else
            NAME(copy_rows)(chunk + used, x + i, 1, here, here);
        used += here;
        i += here;
        if (used == CHUNK || begin + here == end) {
            NAME(add_and_count)(row, chunk, used, also);
            used = 0;
        }
        if (i == job->inner) {
            i = 0;
            x += job->apart;
            minus = minus ? minus + job->inner : NULL;
        }
    }
}

#undef STORED
#undef VALUE
#undef TALLY
#undef VALUE_OF
#undef SINGLE_OF
#undef IS_IN_PLACE
#undef NAME
