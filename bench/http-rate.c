/* http-rate - requests to a web server at a fixed rate: the times that users would see.
 *
 * usage: http-rate ADDRESS PORT PATH CONNECTIONS RATE COUNT
 *        prints: number of answers, median, 99th of 100, longest; times in us
 *
 * Request number i is due at i / RATE seconds, on connection i % CONNECTIONS, which stays open. Its time counts from then on, even
 * if the connection still waits for an earlier answer: a server that stands still makes all requests late that are due meanwhile.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 256
#define COUNT_MAX 1000000
#define ANSWER_MAX 65536

/* An answer that has not come within this time is an error. */
#define PATIENCE_MS 30000

static struct connection {
    int fd;
    /* The request whose answer is awaited, or -1; and the next one that it sends. */
    long waits_for, next;
    char answer[ANSWER_MAX];
    size_t received;
} connections[CONNECTIONS_MAX];

static double times_us[COUNT_MAX];

static void fail(const char *what) {
    fprintf(stderr, "http-rate: %s: %s\n", what, errno ? strerror(errno) : "not as expected");
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int opened(const char *address, const char *port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0 || !inet_aton(address, &place.sin_addr)) fail(address);
    if (connect(fd, (struct sockaddr *)&place, sizeof place)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Whether the whole answer is there; it has to be a success with a length. */
static int is_whole(struct connection *one) {
    one->answer[one->received] = 0;
    char *body = strstr(one->answer, "\r\n\r\n");
    if (!body) return 0;
    char *length = strcasestr(one->answer, "\r\nContent-Length:");
    if (strncmp(one->answer, "HTTP/1.1 200", 12) || !length || length > body) fail("the answer");
    return one->received >= body + 4 - one->answer + strtoul(length + 17, NULL, 10);
}

static int by_value(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int count_of_words, char **words) {
    if (count_of_words != 7) {
        fprintf(stderr, "usage: http-rate ADDRESS PORT PATH CONNECTIONS RATE COUNT\n");
        return 2;
    }
    long count_of_connections = atol(words[4]), count = atol(words[6]), done = 0;
    double rate = atof(words[5]);
    if (count_of_connections < 1 || count_of_connections > CONNECTIONS_MAX || count < 1 || count > COUNT_MAX || !(rate > 0)) fail("a number");
    char request[512];
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", words[3], words[1]);
    if (length < 0 || length >= (int)sizeof request) fail("the path");
    struct pollfd polled[CONNECTIONS_MAX];
    for (long number = 0; number < count_of_connections; number++) {
        connections[number] = (struct connection){.fd = opened(words[1], words[2]), .waits_for = -1, .next = number};
        polled[number] = (struct pollfd){.fd = connections[number].fd, .events = POLLIN};
    }
    int64_t start = now_ns();
    while (done < count) {
        int64_t now = now_ns() - start, next_due = INT64_MAX;
        for (long number = 0; number < count_of_connections; number++) {
            struct connection *one = &connections[number];
            if (one->waits_for >= 0 || one->next >= count) continue;
            int64_t due = one->next * 1e9 / rate;
            if (due > now) {
                if (due < next_due) next_due = due;
                continue;
            }
            if (send(one->fd, request, length, MSG_NOSIGNAL) != length) fail("send");
            one->waits_for = one->next;
            one->next += count_of_connections;
            one->received = 0;
        }
        int64_t wait = next_due == INT64_MAX ? PATIENCE_MS * 1000000LL : next_due - now;
        struct timespec limit = {wait / 1000000000, wait % 1000000000};
        int ready = ppoll(polled, count_of_connections, &limit, NULL);
        if (ready < 0 || (ready == 0 && next_due == INT64_MAX)) fail("no answer");
        for (long number = 0; ready > 0 && number < count_of_connections; number++) {
            struct connection *one = &connections[number];
            if (!polled[number].revents) continue;
            ssize_t got = recv(one->fd, one->answer + one->received, ANSWER_MAX - 1 - one->received, 0);
            if (got <= 0 || one->waits_for < 0) fail("the connection");
            one->received += got;
            if (!is_whole(one)) continue;
            times_us[done++] = (now_ns() - start - one->waits_for * 1e9 / rate) / 1000;
            one->waits_for = -1;
        }
    }
    qsort(times_us, count, sizeof *times_us, by_value);
    printf("%ld %.1f %.1f %.1f\n", count, times_us[count / 2], times_us[count * 99 / 100], times_us[count - 1]);
    return 0;
}
