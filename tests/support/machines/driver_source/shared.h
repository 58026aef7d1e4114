/* What both libraries share: the card, and faults. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state;
    unsigned health; } Fabric;
typedef struct { unsigned id, scope; long long at, took; unsigned type, status; unsigned long long value; } Field;
typedef struct { void *device; unsigned long long kind, data; unsigned slice, part; } Event;
/* FAULTS has `FUNCTION=KIND` or `FUNCTION@GPU=KIND`, separated by commas: a status, or what the call does instead. */
/* Without its initialisation, or after its end, NVML's calls fail: NVML_ERROR_UNINITIALIZED. */
static int initialised;
static int fault(const char *function, int gpu) {
    char with_gpu[80], *faults = getenv("FAULTS"), *copy, *each, *rest;
    struct stat info;
    if (getenv("DRIVER_CALLS")) {
        int file = open(getenv("DRIVER_CALLS"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        dprintf(file, "%s\n", function);
        close(file);
    }
    if (!strncmp(function, "nvml", 4) && strcmp(function, "nvmlInit_v2") && !initialised) return 1;
    if (!faults) return 0;
    snprintf(with_gpu, sizeof with_gpu, "%s@%d", function, gpu);
    for (copy = strdup(faults); (each = strtok_r(copy, ",", &rest)); copy = NULL) {
        char *kind = strchr(each, '=');
        *kind++ = 0;
        if (strcmp(each, function) && strcmp(each, with_gpu)) continue;
        if (!strcmp(kind, "hang")) for (;;) pause();
        if (!strcmp(kind, "spin")) for (;;);
        if (!strcmp(kind, "ignore")) {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_BLOCK, &all, NULL);
            for (;;) pause();
        }
        if (!strcmp(kind, "crash")) abort();
        if (!strcmp(kind, "exit")) _exit(0);
        if (!strcmp(kind, "leave")) {
            if (!fork()) { setsid(); signal(SIGTERM, SIG_IGN); for (;;) pause(); }
            for (;;) pause();
        }
        if (!strcmp(kind, "kernel")) { stat(getenv("STUCK"), &info); continue; }
        return atoi(kind);
    }
    return 0;
}
/* VALUES has `NAME=NUMBER` or `NAME@GPU=NUMBER`, separated by commas; a check reads the second of `NUMBER>LATER`. */
static long value(const char *name, int gpu, long standard) {
    char with_gpu[80], *values = getenv("VALUES"), *copy, *each, *rest, *later;
    if (!values) return standard;
    snprintf(with_gpu, sizeof with_gpu, "%s@%d", name, gpu);
    for (copy = strdup(values); (each = strtok_r(copy, ",", &rest)); copy = NULL) {
        char *number = strchr(each, '=');
        *number++ = 0;
        if (strcmp(each, name) && strcmp(each, with_gpu)) continue;
        /* Of the suite's processes, those of checks have this variable. */
        if ((later = strchr(number, '>')) && getenv("CUBLAS_WORKSPACE_CONFIG")) number = later + 1;
        return strtol(number, NULL, 0);
    }
    return standard;
}
#define BEGIN(gpu) { int status = fault(__func__, gpu); if (status) return status; }
#define GPU long gpu = (long)h - 1; BEGIN(gpu)
static int visible(int number) {
    char *chosen = getenv("CUDA_VISIBLE_DEVICES"), *copy, *each, *rest;
    int count = 0;
    if (!chosen) return number < atoi(getenv("GPUS")) ? number : -1;
    for (copy = strdup(chosen); (each = strtok_r(copy, ",", &rest)); copy = NULL) {
        if (*each < '0' || *each > '9' || atoi(each) >= atoi(getenv("GPUS"))) return -1;
        if (count++ == number) return atoi(each);
    }
    return -1;
}
