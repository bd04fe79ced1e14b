/*
 * A connection of libfabric's verbs provider: how often its end is told, and whether sends make room for others.
 *
 *     endpoint serve ADDRESS     accepts, takes what comes, shuts the connection down when nothing has for 1.5 s
 *     endpoint send ADDRESS      sends until a send has failed or 200 are through, then counts FI_SHUTDOWN: 1 is right
 *     endpoint post ADDRESS      posts 1000 sends and looks at no completion meanwhile, until none is taken for 3 s
 *
 *     cc -I PREFIX/include endpoint.c -L PREFIX/lib -lfabric
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#define PORT "7472"
#define BYTES 1024
#define SENDS 200
#define POSTS 1000
#define PATIENCE_S 3
#define RECEIVES 256

#define OK(call) do { int ret_ = (int)(call); if (ret_ < 0) { \
    fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, fi_strerror(-ret_)); exit(2); } } while (0)

static struct fid_fabric *fabric;
static struct fid_eq *eq;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *tx, *rx;
static struct fid_mr *mr;
static char data[RECEIVES][BYTES];
static struct fi_context contexts[RECEIVES];
static int took; /* completions, in `event` */

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

/* Takes a completion, of a failed operation too. */
static int looked(struct fid_cq *cq)
{
    struct fi_cq_msg_entry entry;
    struct fi_cq_err_entry failed = {0};

    if (!cq) return 0;
    ssize_t n = fi_cq_read(cq, &entry, 1);
    if (n == -FI_EAVAIL) return fi_cq_readerr(cq, &failed, 0) == 1;
    if (n == 1 && cq == rx) /* what came was taken: there is room for the next */
        OK(fi_recv(ep, data[0], BYTES, fi_mr_desc(mr), 0, entry.op_context));
    return n == 1;
}

/* The next event within so long, or 0. */
static uint32_t event(double seconds, struct fi_eq_cm_entry *entry)
{
    struct fi_eq_err_entry error = {0};
    uint32_t kind;

    for (double end = now() + seconds; now() < end;) {
        ssize_t n = fi_eq_read(eq, &kind, entry, sizeof *entry, 0);
        if (n > 0) return kind;
        if (n == -FI_EAVAIL) fi_eq_readerr(eq, &error, 0);
        took += looked(tx) + looked(rx);
    }
    return 0;
}

static struct fi_info *found(const char *address, int serves)
{
    struct fi_info *hints = fi_allocinfo(), *info;

    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->fabric_attr->prov_name = strdup("verbs");
    OK(-abs(fi_getinfo(FI_VERSION(1, 9), address, PORT, serves ? FI_SOURCE : 0, hints, &info)));
    return info;
}

static void open_for(struct fi_info *info)
{
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .size = 2 * RECEIVES};

    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &eq->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    OK(fi_enable(ep));
    OK(fi_mr_reg(domain, data, sizeof data, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
    for (int i = 0; i < RECEIVES; i++) OK(fi_recv(ep, data[i], BYTES, fi_mr_desc(mr), 0, &contexts[i]));
}

static int serve(struct fi_info *info)
{
    struct fi_eq_cm_entry entry;
    struct fid_pep *pep;

    OK(fi_passive_ep(fabric, info, &pep, NULL));
    OK(fi_pep_bind(pep, &eq->fid, 0));
    OK(fi_listen(pep));
    if (event(5, &entry) != FI_CONNREQ) return 2;
    open_for(entry.info);
    OK(fi_accept(ep, NULL, 0));
    double end = now() + 30;
    do took = 0; while ((event(1.5, &entry) || took) && now() < end);
    return -fi_shutdown(ep, 0);
}

static void connect_to(struct fi_info *info)
{
    struct fi_eq_cm_entry entry;

    open_for(info);
    OK(fi_connect(ep, info->dest_addr, NULL, 0));
    if (event(5, &entry) != FI_CONNECTED) exit(2);
}

static int posts(struct fi_info *info)
{
    int number = 0;

    connect_to(info);
    for (double last = now(); number < POSTS && now() - last < PATIENCE_S;) {
        ssize_t n = fi_send(ep, data[0], BYTES, fi_mr_desc(mr), 0, &contexts[0]);
        if (n == -FI_EAGAIN) continue;
        OK(n);
        number++, last = now();
    }
    printf("%d of %d sends were taken\n", number, POSTS);
    return number == POSTS ? 0 : 1;
}

static int sends(struct fi_info *info)
{
    struct fi_cq_msg_entry done;
    struct fi_cq_err_entry error = {0};
    struct fi_eq_cm_entry entry;
    int told = 0, number = 0;
    ssize_t n = 0;

    connect_to(info);
    while (number < SENDS && n >= 0) {
        OK(fi_send(ep, data[0], BYTES, fi_mr_desc(mr), 0, &contexts[0]));
        double end = now() + PATIENCE_S;
        while ((n = fi_cq_read(tx, &done, 1)) == -FI_EAGAIN && now() < end) {}
        if (n == -FI_EAGAIN) return printf("send %d has no completion\n", number + 1), 1;
        number += n == 1;
    }
    if (n == -FI_EAVAIL && fi_cq_readerr(tx, &error, 0) == 1)
        printf("send %d failed: %s\n", number + 1, fi_strerror(error.err));
    for (double end = now() + 3; now() < end;) told += event(0.5, &entry) == FI_SHUTDOWN;
    printf("told %d times that the connection is over\n", told);
    return told == 1 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};

    if (argc != 3) return fprintf(stderr, "usage: endpoint serve|send|post ADDRESS\n"), 2;
    int serves = !strcmp(argv[1], "serve");
    struct fi_info *info = found(argv[2], serves);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    int status = serves ? serve(info) : !strcmp(argv[1], "post") ? posts(info) : sends(info);
    fflush(stdout);
    _Exit(status); /* how a failed endpoint is closed is another matter */
}
