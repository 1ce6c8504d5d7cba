/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_mailbox.c: property interface of the VideoCore firmware (raspberrypi/firmware wiki, "Mailbox property
 * interface"). AArch64: the message's cache lines are cleaned and invalidated by address.
 */
#include "bcm2835_mailbox.h"

#define READ 0x00u
#define STATUS 0x18u
#define WRITE 0x20u
#define STATUS_FULL (1u << 31)
#define STATUS_EMPTY (1u << 30)
#define CHANNEL_PROPERTIES 8u
#define TAG_GET_CLOCK_RATE 0x00030002u
#define RESPONSE_OK 0x80000000u
#define BUS_ALIAS 0xc0000000u /* RAM as the VideoCore sees it, past its L2 cache */
#define TIMEOUT_MS 100u

static void clean_and_invalidate(const uint32_t *message)
{
    for (size_t line = 0; line < 128; line += 64) {
        __asm__ volatile("dc civac, %0" ::"r"((const uint8_t *)message + line) : "memory");
    }
    arch_barrier();
}

static bool exchange(const struct bcm2835_mailbox_config *mailbox, uint32_t *message)
{
    const uint32_t mail = (uint32_t)(uintptr_t)message | BUS_ALIAS | CHANNEL_PROPERTIES;
    const uint64_t deadline = hal_deadline(TIMEOUT_MS);
    clean_and_invalidate(message);
    while ((hal_read32(mailbox->base + STATUS) & STATUS_FULL) != 0) {
        if (hal_expired(deadline)) {
            return false;
        }
    }
    hal_write32(mailbox->base + WRITE, mail);
    for (;;) {
        if ((hal_read32(mailbox->base + STATUS) & STATUS_EMPTY) == 0) {
            if (hal_read32(mailbox->base + READ) == mail) {
                break;
            }
        } else if (hal_expired(deadline)) {
            return false;
        }
    }
    clean_and_invalidate(message);
    return true;
}

static uint32_t hz(const void *config, void *state)
{
    const struct bcm2835_mailbox_config *mailbox = config;
    struct bcm2835_mailbox_state *buffer = state;
    volatile uint32_t *message = buffer->message;
    message[0] = 8u * sizeof(uint32_t); /* bytes of the whole message */
    message[1] = 0;                     /* request */
    message[2] = TAG_GET_CLOCK_RATE;
    message[3] = 8;                     /* bytes of the value */
    message[4] = 0;
    message[5] = mailbox->clock_id;
    message[6] = 0;                     /* the rate will be here */
    message[7] = 0;                     /* end */
    if (!exchange(mailbox, buffer->message) || message[1] != RESPONSE_OK || message[6] == 0) {
        return mailbox->fallback_hz;
    }
    return message[6];
}

const struct hal_clock_source_api bcm2835_mailbox_api = {.hz = hz};
