/* Another clock for all programs of a host: the time of day is so many seconds off as /mnt/clock says. The monotonic
   clock stays as it is, as it does on a real host. No headers, so that a compiler alone is enough. */

struct spec { long seconds, nanoseconds; };
struct val { long seconds, microseconds; };

extern long syscall(long number, ...);

static long offset(void) {
    static long known = -1L << 60;
    if (known != -1L << 60) return known;
    char text[32];
    long sign = 1, found = 0, size = 0;
    int fd = (int)syscall(OPEN, -100, "/mnt/clock", 02000000, 0);
    if (fd >= 0) {
        size = syscall(READ, fd, text, sizeof text);
        syscall(CLOSE, fd);
    }
    for (long at = 0; at < size; at++) {
        if (text[at] == '-') sign = -1;
        if (text[at] >= '0' && text[at] <= '9') found = 10 * found + text[at] - '0';
    }
    return known = sign * found;
}

int clock_gettime(int clock, struct spec *into) {
    long done = syscall(GETTIME, clock, into);
    if (!done && (clock == 0 || clock == 5)) into->seconds += offset();
    return (int)done;
}

int gettimeofday(struct val *into, void *zone) {
    struct spec now;
    (void)zone;
    if (clock_gettime(0, &now)) return -1;
    into->seconds = now.seconds;
    into->microseconds = now.nanoseconds / 1000;
    return 0;
}

long time(long *into) {
    struct spec now;
    clock_gettime(0, &now);
    if (into) *into = now.seconds;
    return now.seconds;
}
