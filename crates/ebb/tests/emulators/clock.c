/* Gives a program a wall clock that is wrong: preloaded, it adds the seconds in the file $CLOCK_AHEAD to the time of
 * day, from when there is that file. Clocks that only count keep counting: a machine with a wrong date has those right.
 *
 * cc -shared -fPIC -o clock.so clock.c
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long ahead(void)
{
    const char *path = getenv("CLOCK_AHEAD");
    FILE *file = path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (!file)
        return 0;
    if (fscanf(file, "%ld", &seconds) != 1)
        seconds = 0;
    fclose(file);
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += ahead();
    return result;
}
