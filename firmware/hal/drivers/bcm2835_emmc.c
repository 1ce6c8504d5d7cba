/* SPDX-License-Identifier: Apache-2.0
 *
 * bcm2835_emmc.c: SD card over the EMMC controller, polled, data moved by the processor. Sections are those of BCM2835
 * ARM Peripherals. Standard and high capacity cards; four data lines at 25 MHz.
 */
#include "bcm2835_emmc.h"

#include "common/sd_card.h"

#define BLKSIZECNT 0x04u
#define ARG1 0x08u
#define CMDTM 0x0cu
#define RESP0 0x10u
#define RESP1 0x14u
#define RESP2 0x18u
#define RESP3 0x1cu
#define DATA 0x20u
#define STATUS 0x24u
#define CONTROL0 0x28u
#define CONTROL1 0x2cu
#define INTERRUPT 0x30u
#define IRPT_MASK 0x34u
#define IRPT_EN 0x38u
#define CONTROL2 0x3cu

/* CMDTM */
#define TM_BLKCNT_EN (1u << 1)
#define TM_AUTO_CMD12 (1u << 2)
#define TM_READ (1u << 4)
#define TM_MULTI_BLOCK (1u << 5)
#define RESPONSE_136 (1u << 16)
#define RESPONSE_48 (2u << 16)
#define RESPONSE_48_BUSY (3u << 16)
#define CHECK_CRC (1u << 19)
#define CHECK_INDEX (1u << 20)
#define IS_DATA (1u << 21)
#define R1 (RESPONSE_48 | CHECK_CRC | CHECK_INDEX)
#define R1B (RESPONSE_48_BUSY | CHECK_CRC | CHECK_INDEX)
#define R2 (RESPONSE_136 | CHECK_CRC)
#define R3 RESPONSE_48
#define R6 R1
#define R7 R1

/* STATUS */
#define CMD_INHIBIT (1u << 0)
#define DAT_INHIBIT (1u << 1)

/* CONTROL0, CONTROL1 */
#define C0_FOUR_BIT (1u << 1)
#define C0_POWER_3V3 (0xfu << 8) /* reserved on the BCM2835, bus power of a standard SDHCI */
#define C1_CLOCK_INTERNAL (1u << 0)
#define C1_CLOCK_STABLE (1u << 1)
#define C1_CLOCK_ENABLE (1u << 2)
#define C1_TIMEOUT_MAX (0xeu << 16)
#define C1_RESET_ALL (1u << 24)
#define C1_RESET_COMMAND (1u << 25)
#define C1_RESET_DATA (1u << 26)

/* INTERRUPT */
#define CMD_DONE (1u << 0)
#define DATA_DONE (1u << 1)
#define WRITE_READY (1u << 4)
#define READ_READY (1u << 5)
#define ANY_ERROR 0xffff8000u

#define IDENTIFICATION_HZ 400000u
#define TRANSFER_HZ 25000000u
#define COMMAND_TIMEOUT_MS 100u
#define MAX_COUNT 0xffffu /* BLKSIZECNT has 16 bits for the number of blocks */
#define WORDS (HAL_BLOCK / sizeof(uint32_t))

/* While the card's clock is slow, the controller may lose a write that follows another within four of its cycles (a
 * clock domain crossing; Linux, drivers/mmc/host/sdhci-iproc.c). The data register is not affected. */
static void write_register(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card,
                           uint32_t number, uint32_t value)
{
    hal_write32(emmc->base + number, value);
    if (card->slow) {
        hal_delay(4u * 1000000u / IDENTIFICATION_HZ);
    }
}

static hal_status wait_clear(uint64_t address, uint32_t bits, uint32_t milliseconds)
{
    const uint64_t deadline = hal_deadline(milliseconds);
    while ((hal_read32(address) & bits) != 0) {
        if (hal_expired(deadline)) {
            return HAL_E_TIMEOUT;
        }
    }
    return HAL_OK;
}

/* Takes one of INTERRUPT's bits if it is there. */
static hal_status take_interrupt(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card,
                                 uint32_t bit, uint64_t deadline)
{
    const bool late = hal_expired(deadline); /* before the look: steps may be far apart */
    const uint32_t interrupts = hal_read32(emmc->base + INTERRUPT);
    if ((interrupts & ANY_ERROR) != 0) {
        write_register(emmc, card, INTERRUPT, interrupts);
        return HAL_E_IO;
    }
    if ((interrupts & bit) != 0) {
        write_register(emmc, card, INTERRUPT, bit);
        return HAL_OK;
    }
    return late ? HAL_E_TIMEOUT : HAL_PENDING;
}

static hal_status wait_interrupt(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card,
                                 uint32_t bit, uint32_t milliseconds)
{
    const uint64_t deadline = hal_deadline(milliseconds);
    hal_status status;
    while ((status = take_interrupt(emmc, card, bit, deadline)) == HAL_PENDING) {
    }
    return status;
}

/* After an error the command and data circuits must be reset before the next command (SDHCI 3.10.1). */
static void recover(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card)
{
    const uint32_t reset = C1_RESET_COMMAND | C1_RESET_DATA;
    write_register(emmc, card, CONTROL1, hal_read32(emmc->base + CONTROL1) | reset);
    (void)wait_clear(emmc->base + CONTROL1, reset, COMMAND_TIMEOUT_MS);
    write_register(emmc, card, INTERRUPT, 0xffffffffu);
}

static hal_status command(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card, uint32_t index,
                          uint32_t flags, uint32_t argument)
{
    uint32_t inhibit = CMD_INHIBIT;
    if ((flags & IS_DATA) != 0 || (flags & RESPONSE_48_BUSY) == RESPONSE_48_BUSY) {
        inhibit |= DAT_INHIBIT;
    }
    hal_status status = wait_clear(emmc->base + STATUS, inhibit, SD_WRITE_TIMEOUT_MS);
    if (status == HAL_OK) {
        write_register(emmc, card, INTERRUPT, 0xffffffffu);
        write_register(emmc, card, ARG1, argument);
        write_register(emmc, card, CMDTM, index << 24 | flags);
        status = wait_interrupt(emmc, card, CMD_DONE, COMMAND_TIMEOUT_MS);
    }
    if (status == HAL_OK && (flags & IS_DATA) == 0 && (flags & RESPONSE_48_BUSY) == RESPONSE_48_BUSY) {
        status = wait_interrupt(emmc, card, DATA_DONE, SD_WRITE_TIMEOUT_MS);
    }
    if (status != HAL_OK) {
        recover(emmc, card);
    }
    return status;
}

static hal_status app_command(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card,
                              uint32_t rca, uint32_t index, uint32_t flags, uint32_t argument)
{
    const hal_status status = command(emmc, card, SD_APP_CMD, R1, rca << 16);
    return status == HAL_OK ? command(emmc, card, index, flags, argument) : status;
}

/* Divided clock mode of SDHCI 3.00: base / (2 * divisor), 10 bits. */
static hal_status set_clock(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card, uint32_t hz)
{
    uint32_t divisor = (card->base_hz + 2u * hz - 1u) / (2u * hz);
    if (divisor > 0x3ffu) {
        divisor = 0x3ff;
    }
    write_register(emmc, card, CONTROL1, C1_TIMEOUT_MAX); /* the card's clock is off while it changes */
    const uint32_t control =
        C1_TIMEOUT_MAX | C1_CLOCK_INTERNAL | (divisor & 0xffu) << 8 | (divisor >> 8 & 3u) << 6;
    write_register(emmc, card, CONTROL1, control);
    const uint64_t deadline = hal_deadline(COMMAND_TIMEOUT_MS);
    while ((hal_read32(emmc->base + CONTROL1) & C1_CLOCK_STABLE) == 0) {
        if (hal_expired(deadline)) {
            return HAL_E_TIMEOUT;
        }
    }
    write_register(emmc, card, CONTROL1, control | C1_CLOCK_ENABLE);
    hal_delay(200); /* 74 clocks at 400 kHz before the first command (SD 6.4.1) */
    return HAL_OK;
}

/* Idle, voltage, capacity class (SD 4.2). */
static hal_status power_up(const struct bcm2835_emmc_config *emmc, struct bcm2835_emmc_state *card)
{
    hal_status status = command(emmc, card, SD_GO_IDLE_STATE, 0, 0);
    if (status != HAL_OK) {
        return status;
    }
    /* A card of version 1 does not know this command, and is then never asked for high capacity. */
    const bool version2 = command(emmc, card, SD_SEND_IF_COND, R7, SD_CHECK_PATTERN) == HAL_OK &&
                          (hal_read32(emmc->base + RESP0) & 0xfffu) == SD_CHECK_PATTERN;
    const uint32_t wanted = SD_OCR_VOLTAGES | (version2 ? SD_OCR_HIGH_CAPACITY : 0);
    const uint64_t deadline = hal_deadline(SD_INIT_TIMEOUT_MS);
    for (;;) {
        if (app_command(emmc, card, 0, SD_APP_SEND_OP_COND, R3, wanted) != HAL_OK) {
            return HAL_E_ABSENT; /* nothing answers: no card */
        }
        const uint32_t ocr = hal_read32(emmc->base + RESP0);
        if ((ocr & SD_OCR_POWERED_UP) != 0) {
            card->high_capacity = (ocr & SD_OCR_HIGH_CAPACITY) != 0;
            return HAL_OK;
        }
        if (hal_expired(deadline)) {
            return HAL_E_TIMEOUT;
        }
    }
}

/* Address, size, selection, block length, bus width, full speed. */
static hal_status select_card(const struct bcm2835_emmc_config *emmc, struct bcm2835_emmc_state *card)
{
    hal_status status = command(emmc, card, SD_ALL_SEND_CID, R2, 0);
    if (status == HAL_OK) {
        status = command(emmc, card, SD_SEND_RELATIVE_ADDR, R6, 0);
    }
    const uint32_t rca = hal_read32(emmc->base + RESP0) >> 16;
    if (status == HAL_OK) {
        status = command(emmc, card, SD_SEND_CSD, R2, rca << 16);
    }
    if (status != HAL_OK) {
        return status;
    }
    /* The response registers hold bits 127 .. 8 of the CSD: its CRC byte is cut off. */
    uint32_t response[4];
    for (uint32_t i = 0; i < 4; i++) {
        response[i] = hal_read32(emmc->base + RESP3 - 4u * i);
    }
    uint32_t csd[4];
    for (uint32_t i = 0; i < 4; i++) {
        csd[i] = response[i] << 8 | (i < 3 ? response[i + 1u] >> 24 : 0);
    }
    card->blocks = sd_card_blocks(csd);
    if (card->blocks == 0) {
        return HAL_E_IO;
    }
    status = command(emmc, card, SD_SELECT_CARD, R1B, rca << 16);
    if (status == HAL_OK && !card->high_capacity) {
        status = command(emmc, card, SD_SET_BLOCKLEN, R1, HAL_BLOCK);
    }
    if (status == HAL_OK) {
        status = app_command(emmc, card, rca, SD_APP_SET_BUS_WIDTH, R1, 2);
    }
    if (status == HAL_OK) {
        write_register(emmc, card, CONTROL0, hal_read32(emmc->base + CONTROL0) | C0_FOUR_BIT);
        status = set_clock(emmc, card, TRANSFER_HZ);
        card->slow = false;
    }
    return status;
}

static hal_status init(const void *config, void *state)
{
    const struct bcm2835_emmc_config *emmc = config;
    struct bcm2835_emmc_state *card = state;
    card->blocks = 0;
    card->slow = true;
    card->base_hz = emmc->clock_source.api->hz(emmc->clock_source.config, emmc->clock_source.state);
    if (card->base_hz == 0) {
        return HAL_E_IO;
    }
    write_register(emmc, card, CONTROL1, C1_RESET_ALL);
    hal_status status = wait_clear(emmc->base + CONTROL1, C1_RESET_ALL, COMMAND_TIMEOUT_MS);
    if (status == HAL_OK) {
        write_register(emmc, card, CONTROL0, C0_POWER_3V3);
        write_register(emmc, card, CONTROL2, 0);
        write_register(emmc, card, IRPT_EN, 0);             /* no interrupt line ... */
        write_register(emmc, card, IRPT_MASK, 0xffffffffu); /* ... but every flag shows in INTERRUPT */
        status = set_clock(emmc, card, IDENTIFICATION_HZ);
    }
    if (status == HAL_OK) {
        status = power_up(emmc, card);
    }
    if (status == HAL_OK) {
        status = select_card(emmc, card);
    }
    return status;
}

static uint64_t block_count(const void *config, const void *state)
{
    const struct bcm2835_emmc_state *card = state;
    (void)config;
    return card->blocks;
}

/* Begins to read or write at most MAX_COUNT blocks: one command. */
static hal_status begin(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card, bool is_read,
                        uint64_t block, uint32_t count)
{
    uint32_t flags = R1 | IS_DATA | TM_BLKCNT_EN | (is_read ? TM_READ : 0);
    uint32_t index = is_read ? SD_READ_SINGLE_BLOCK : SD_WRITE_BLOCK;
    if (count > 1) {
        flags |= TM_MULTI_BLOCK | TM_AUTO_CMD12;
        index = is_read ? SD_READ_MULTIPLE_BLOCK : SD_WRITE_MULTIPLE_BLOCK;
    }
    write_register(emmc, card, BLKSIZECNT, count << 16 | HAL_BLOCK);
    return command(emmc, card, index, flags, (uint32_t)(card->high_capacity ? block : block * HAL_BLOCK));
}

static hal_status give_up(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card,
                          hal_status status)
{
    recover(emmc, card);
    (void)command(emmc, card, SD_STOP_TRANSMISSION, R1B, 0); /* a card that was not sending refuses it: no harm */
    return status;
}

static bool in_range(const struct bcm2835_emmc_state *card, uint64_t block, uint32_t count)
{
    return block <= card->blocks && count <= card->blocks - block;
}

/* The next command of the read under way. */
static hal_status begin_read(const struct bcm2835_emmc_config *emmc, struct bcm2835_emmc_state *card)
{
    const uint32_t count = card->left < MAX_COUNT ? card->left : MAX_COUNT;
    const hal_status status = begin(emmc, card, true, card->next, count);
    if (status != HAL_OK) {
        return give_up(emmc, card, status);
    }
    card->next += count;
    card->left -= count;
    card->waiting = count;
    card->deadline = hal_deadline(SD_READ_TIMEOUT_MS);
    return HAL_OK;
}

static hal_status start(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count, void *data)
{
    struct bcm2835_emmc_state *card = state;
    (void)transfer;
    if (!in_range(card, block, count)) {
        return HAL_E_RANGE;
    }
    card->next = block;
    card->left = count;
    card->waiting = 0;
    card->to = count == 0 ? NULL : data;
    return count == 0 ? HAL_OK : begin_read(config, card);
}

/* Moves one block, or ends a command. */
static hal_status move(const struct bcm2835_emmc_config *emmc, struct bcm2835_emmc_state *card)
{
    if (card->waiting > 0) {
        const hal_status status = take_interrupt(emmc, card, READ_READY, card->deadline);
        if (status != HAL_OK) {
            return status;
        }
        for (uint32_t word = 0; word < WORDS; word++) {
            *card->to++ = hal_read32(emmc->base + DATA);
        }
        card->waiting--;
        card->deadline = hal_deadline(card->waiting > 0 ? SD_READ_TIMEOUT_MS : SD_WRITE_TIMEOUT_MS);
        return HAL_PENDING;
    }
    const hal_status status = take_interrupt(emmc, card, DATA_DONE, card->deadline);
    if (status != HAL_OK || card->left == 0) {
        return status;
    }
    const hal_status next = begin_read(emmc, card);
    return next == HAL_OK ? HAL_PENDING : next;
}

static hal_status step(const void *config, void *state, uint32_t transfer)
{
    const struct bcm2835_emmc_config *emmc = config;
    struct bcm2835_emmc_state *card = state;
    (void)transfer;
    if (card->to == NULL) {
        return HAL_OK; /* a read of no blocks */
    }
    const hal_status status = move(emmc, card);
    return status == HAL_OK || status == HAL_PENDING ? status : give_up(emmc, card, status);
}

/* One command's worth of blocks. */
static hal_status write_some(const struct bcm2835_emmc_config *emmc, const struct bcm2835_emmc_state *card,
                             uint64_t block, uint32_t count, const uint32_t *data)
{
    hal_status status = begin(emmc, card, false, block, count);
    for (uint32_t i = 0; status == HAL_OK && i < count; i++) {
        status = wait_interrupt(emmc, card, WRITE_READY, SD_WRITE_TIMEOUT_MS);
        for (uint32_t word = 0; status == HAL_OK && word < WORDS; word++, data++) {
            hal_write32(emmc->base + DATA, *data);
        }
    }
    if (status == HAL_OK) {
        status = wait_interrupt(emmc, card, DATA_DONE, SD_WRITE_TIMEOUT_MS);
    }
    return status == HAL_OK ? HAL_OK : give_up(emmc, card, status);
}

static hal_status write(const void *config, void *state, uint64_t block, uint32_t count, const void *data)
{
    const struct bcm2835_emmc_state *card = state;
    const uint32_t *words = data;
    if (!in_range(card, block, count)) {
        return HAL_E_RANGE;
    }
    while (count > 0) {
        const uint32_t piece = count < MAX_COUNT ? count : MAX_COUNT;
        const hal_status status = write_some(config, card, block, piece, words);
        if (status != HAL_OK) {
            return status;
        }
        block += piece;
        count -= piece;
        words += (size_t)piece * WORDS;
    }
    return HAL_OK;
}

const struct hal_block_api bcm2835_emmc_api = {
    .init = init, .block_count = block_count, .depth = 1, .start = start, .step = step, .write = write};
