/*
 * A connectionless endpoint of libfabric (verbs;ofi_rxm) whose queue pair has failed: is the peer to be reached again?
 *
 *     recover serve ADDRESS COUNT        receives until each message has come, or nothing has for three seconds
 *     recover send ADDRESS COUNT         sends them one by one; one that fails is sent again
 *
 *     cc -I PREFIX/include recover.c -L PREFIX/lib -lfabric
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#define PORT "7471"
#define PATIENCE_S 3
#define BYTES 1024
#define RECEIVES 64

#define OK(call) do { int ret_ = (int)(call); if (ret_) { \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, fi_strerror(-ret_)); exit(2); } } while (0)

static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;
static int failed; /* completions with an error */

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static struct fi_info *open_at(const char *address, int serves)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .size = 256};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
    OK(fi_getinfo(FI_VERSION(1, 9), address, PORT, serves ? FI_SOURCE : 0, hints, &info));
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(ep));
    return info;
}

/* The next completion's context, or NULL: there is none, or it is of an operation that has failed. */
static void *next(int *is_error)
{
    struct fi_cq_msg_entry entry;
    struct fi_cq_err_entry error = {0};
    ssize_t n = fi_cq_read(cq, &entry, 1);

    *is_error = 0;
    if (n == 1) return entry.op_context;
    if (n == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1) {
        if (!failed++) printf("an operation failed: %s\n", fi_strerror(error.err));
        *is_error = 1;
        return error.op_context;
    }
    return NULL;
}

static int serve(int count)
{
    static char data[RECEIVES][BYTES];
    static struct fi_context contexts[RECEIVES];
    char *seen = calloc(1, count);
    int got = 0, i, is_error;
    double last = now() + 4;

    for (i = 0; i < RECEIVES; i++) OK(fi_recv(ep, data[i], BYTES, NULL, FI_ADDR_UNSPEC, &contexts[i]));
    while (got < count && now() - last < PATIENCE_S) {
        struct fi_context *context = next(&is_error);
        if (!context || is_error) continue;
        int at = context - contexts, number = *(int *)data[at];
        if (number >= 0 && number < count && !seen[number]) seen[number] = 1, got++, last = now();
        for (double end = now() + PATIENCE_S; now() < end; next(&is_error))
            if (fi_recv(ep, data[at], BYTES, NULL, FI_ADDR_UNSPEC, context) != -FI_EAGAIN) break;
    }
    printf("%d of %d messages came\n", got, count);
    /* The peer is to have the last completion before this end goes. */
    for (last = now(); now() - last < 0.5;) next(&is_error);
    return got == count ? 0 : 1;
}

static int sends(struct fi_info *info, int count)
{
    static char data[BYTES];
    struct fi_context context;
    fi_addr_t peer;
    int number = 0, is_error;
    double last = now();

    OK(fi_av_insert(av, info->dest_addr, 1, &peer, 0, NULL) != 1);
    while (number < count && now() - last < PATIENCE_S) {
        *(int *)data = number;
        ssize_t ret = fi_send(ep, data, BYTES, NULL, peer, &context);
        if (ret) { /* FI_EAGAIN while there is no connection */
            next(&is_error);
            continue;
        }
        while (!next(&is_error) && now() - last < PATIENCE_S) {}
        if (now() - last < PATIENCE_S && !is_error) number++, last = now();
    }
    /* The server is to take the last ones before this end goes. */
    for (last = now(); now() - last < 1;) next(&is_error);
    printf("%d of %d messages sent, %d completions with an error\n", number, count, failed);
    return number == count ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: recover serve|send ADDRESS COUNT\n"), 2;
    int serves = !strcmp(argv[1], "serve"), count = atoi(argv[3]);
    struct fi_info *info = open_at(argv[2], serves);
    int status = serves ? serve(count) : sends(info, count);
    fflush(stdout);
    _Exit(status); /* what libfabric does with a failed endpoint when it is closed is another matter */
}
