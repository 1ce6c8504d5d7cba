/* SPDX-License-Identifier: Apache-2.0
 *
 * spi_sd.c: SD card on an SPI bus, standard and high capacity. Checksums are verified on both sides: here those of data
 * blocks, by the card those of commands and of what is written. Sections are those of the SD Physical Layer Simplified
 * Specification 6.00.
 */
#include "spi_sd.h"

#include "common/sd_card.h"

#define IDENTIFICATION_HZ 400000u
#define R1_IDLE 0x01u            /* 7.3.2.1 */
#define R1_ILLEGAL 0x04u
#define R1_NONE 0xffu
#define TOKEN_START 0xfeu        /* 7.3.3.2 */
#define DATA_ACCEPTED 0x05u      /* 7.3.3.1 */
#define RESPONSE_BYTES 10u       /* 7.5.1.2: NCR is at most 8; one for the stuff byte of CMD12 */
#define TOKEN_BYTES 16u          /* received in a step to find the token */

static void exchange(const struct spi_sd_config *sd, const uint8_t *tx, uint8_t *rx, size_t bytes)
{
    sd->bus.api->transfer(sd->bus.config, sd->bus.state, tx, rx, bytes);
}

static uint8_t receive(const struct spi_sd_config *sd)
{
    uint8_t byte;
    exchange(sd, NULL, &byte, 1);
    return byte;
}

static void select(const struct spi_sd_config *sd, bool selected)
{
    sd->bus.api->select(sd->bus.config, sd->bus.state, selected);
    if (!selected) {
        (void)receive(sd); /* the card lets go of its line with the next eight clocks */
    }
}

/* 4.5: x^7 + x^3 + 1 over the command's first five bytes */
static uint8_t crc7(const uint8_t *data, size_t bytes)
{
    uint8_t crc = 0;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (uint8_t)((uint32_t)crc << 1 ^ ((crc & 0x80u) != 0 ? 0x12u : 0u));
        }
    }
    return crc;
}

/* 4.5: x^16 + x^12 + x^5 + 1, a byte at a time without a table */
static uint16_t crc16(const uint8_t *data, size_t bytes)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t x = (crc >> 8 ^ data[i]) & 0xffu;
        x ^= x >> 4;
        crc = (crc << 8 ^ x << 12 ^ x << 5 ^ x) & 0xffffu;
    }
    return (uint16_t)crc;
}

static hal_status wait_not_busy(const struct spi_sd_config *sd, uint32_t milliseconds)
{
    const uint64_t deadline = hal_deadline(milliseconds);
    while (receive(sd) != 0xff) {
        if (hal_expired(deadline)) {
            return HAL_E_TIMEOUT;
        }
    }
    return HAL_OK;
}

/* Sends a command to the selected card and returns R1, or R1_NONE when nothing answers. */
static uint8_t command(const struct spi_sd_config *sd, uint32_t index, uint32_t argument)
{
    uint8_t frame[6] = {(uint8_t)(0x40u | index), (uint8_t)(argument >> 24), (uint8_t)(argument >> 16),
                        (uint8_t)(argument >> 8), (uint8_t)argument, 0};
    frame[5] = crc7(frame, 5) | 1u;
    if (index != SD_GO_IDLE_STATE && index != SD_STOP_TRANSMISSION &&
        wait_not_busy(sd, SD_WRITE_TIMEOUT_MS) != HAL_OK) {
        return R1_NONE;
    }
    exchange(sd, frame, NULL, sizeof frame);
    if (index == SD_STOP_TRANSMISSION) {
        (void)receive(sd); /* stuff byte (7.3.1.3) */
    }
    for (uint32_t i = 0; i < RESPONSE_BYTES; i++) {
        const uint8_t response = receive(sd);
        if ((response & 0x80u) == 0) {
            return response;
        }
    }
    return R1_NONE;
}

static uint8_t app_command(const struct spi_sd_config *sd, uint32_t index, uint32_t argument)
{
    const uint8_t response = command(sd, SD_APP_CMD, 0);
    return (response & ~R1_IDLE) == 0 ? command(sd, index, argument) : response;
}

static uint32_t receive_word(const struct spi_sd_config *sd)
{
    uint8_t bytes[4];
    exchange(sd, NULL, bytes, sizeof bytes);
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* A data block: start token, bytes, checksum (7.3.3). HAL_PENDING: the card has not sent the token yet. */
static hal_status receive_data(const struct spi_sd_config *sd, uint8_t *data, size_t bytes, uint64_t deadline)
{
    uint8_t token = 0xff;
    for (uint32_t i = 0; i < TOKEN_BYTES && token == 0xff; i++) {
        token = receive(sd);
    }
    if (token == 0xff) {
        return hal_expired(deadline) ? HAL_E_TIMEOUT : HAL_PENDING;
    }
    if (token != TOKEN_START) {
        return HAL_E_IO; /* an error token */
    }
    uint8_t crc[2];
    exchange(sd, NULL, data, bytes);
    exchange(sd, NULL, crc, sizeof crc);
    return ((uint32_t)crc[0] << 8 | crc[1]) == crc16(data, bytes) ? HAL_OK : HAL_E_IO;
}

static hal_status receive_register(const struct spi_sd_config *sd, uint8_t raw[16])
{
    const uint64_t deadline = hal_deadline(SD_READ_TIMEOUT_MS);
    hal_status status;
    while ((status = receive_data(sd, raw, 16, deadline)) == HAL_PENDING) {
    }
    return status;
}

/* Idle, voltage, capacity class, size (7.2.1). The card is selected. */
static hal_status identify(const struct spi_sd_config *sd, struct spi_sd_state *card)
{
    uint64_t deadline = hal_deadline(SD_INIT_TIMEOUT_MS);
    uint8_t response;
    while ((response = command(sd, SD_GO_IDLE_STATE, 0)) != R1_IDLE) {
        if (hal_expired(deadline)) {
            return HAL_E_ABSENT;
        }
    }
    response = command(sd, SD_SEND_IF_COND, SD_CHECK_PATTERN);
    const bool version2 = (response & R1_ILLEGAL) == 0 && response != R1_NONE;
    if (version2 && (receive_word(sd) & 0xfffu) != SD_CHECK_PATTERN) {
        return HAL_E_IO;
    }
    deadline = hal_deadline(SD_INIT_TIMEOUT_MS);
    while (app_command(sd, SD_APP_SEND_OP_COND, version2 ? SD_OCR_HIGH_CAPACITY : 0) != 0) {
        if (hal_expired(deadline)) {
            return HAL_E_TIMEOUT;
        }
    }
    if ((command(sd, SD_READ_OCR, 0) & ~R1_IDLE) != 0) { /* QEMU's card still says idle here */
        return HAL_E_IO;
    }
    card->high_capacity = (receive_word(sd) & SD_OCR_HIGH_CAPACITY) != 0;
    /* Unless told so, a card on SPI looks at no checksum (7.2.2): a wrong bit could make a write one of another block. */
    if ((command(sd, SD_CRC_ON_OFF, 1) & ~R1_IDLE) != 0) {
        return HAL_E_IO;
    }
    if (!card->high_capacity && command(sd, SD_SET_BLOCKLEN, HAL_BLOCK) != 0) {
        return HAL_E_IO;
    }
    uint8_t raw[16];
    if (command(sd, SD_SEND_CSD, 0) != 0 || receive_register(sd, raw) != HAL_OK) {
        return HAL_E_IO;
    }
    uint32_t csd[4];
    for (uint32_t i = 0; i < 4; i++) {
        csd[i] = (uint32_t)raw[4u * i] << 24 | (uint32_t)raw[4u * i + 1u] << 16 | (uint32_t)raw[4u * i + 2u] << 8 |
                 raw[4u * i + 3u];
    }
    card->blocks = sd_card_blocks(csd);
    return card->blocks != 0 ? HAL_OK : HAL_E_IO;
}

static hal_status init(const void *config, void *state)
{
    const struct spi_sd_config *sd = config;
    struct spi_sd_state *card = state;
    card->blocks = 0;
    hal_status status = sd->bus.api->init(sd->bus.config, sd->bus.state);
    if (status != HAL_OK) {
        return status;
    }
    sd->bus.api->set_clock(sd->bus.config, sd->bus.state, IDENTIFICATION_HZ);
    select(sd, false);
    exchange(sd, NULL, NULL, 10); /* at least 74 clocks with the card not selected (6.4.1) */
    select(sd, true);
    status = identify(sd, card);
    select(sd, false);
    sd->bus.api->set_clock(sd->bus.config, sd->bus.state, sd->transfer_hz);
    return status;
}

static uint64_t block_count(const void *config, const void *state)
{
    const struct spi_sd_state *card = state;
    (void)config;
    return card->blocks;
}

static uint32_t address(const struct spi_sd_state *card, uint64_t block)
{
    return (uint32_t)(card->high_capacity ? block : block * HAL_BLOCK);
}

static bool in_range(const struct spi_sd_state *card, uint64_t block, uint32_t count)
{
    return block <= card->blocks && count <= card->blocks - block;
}

/* The card stays selected until the read has ended. */
static hal_status start(const void *config, void *state, uint32_t transfer, uint64_t block, uint32_t count, void *data)
{
    const struct spi_sd_config *sd = config;
    struct spi_sd_state *card = state;
    (void)transfer;
    if (!in_range(card, block, count)) {
        return HAL_E_RANGE;
    }
    card->left = count;
    card->to = data;
    if (count == 0) {
        return HAL_OK;
    }
    select(sd, true);
    if (command(sd, SD_READ_MULTIPLE_BLOCK, address(card, block)) != 0) {
        select(sd, false);
        return HAL_E_IO;
    }
    card->deadline = hal_deadline(SD_READ_TIMEOUT_MS);
    return HAL_OK;
}

static hal_status step(const void *config, void *state, uint32_t transfer)
{
    const struct spi_sd_config *sd = config;
    struct spi_sd_state *card = state;
    (void)transfer;
    if (card->left == 0) {
        return HAL_OK;
    }
    hal_status status = receive_data(sd, card->to, HAL_BLOCK, card->deadline);
    if (status == HAL_OK) {
        card->to += HAL_BLOCK;
        card->left--;
        card->deadline = hal_deadline(SD_READ_TIMEOUT_MS);
        status = card->left == 0 ? HAL_OK : HAL_PENDING;
    }
    if (status != HAL_PENDING) {
        card->left = 0;
        if (command(sd, SD_STOP_TRANSMISSION, 0) == R1_NONE && status == HAL_OK) {
            status = HAL_E_IO;
        }
        select(sd, false);
    }
    return status;
}

static hal_status write_block(const struct spi_sd_config *sd, uint32_t at, const uint8_t *data)
{
    if (command(sd, SD_WRITE_BLOCK, at) != 0) {
        return HAL_E_IO;
    }
    const uint8_t start_token[2] = {0xff, TOKEN_START};
    const uint16_t crc = crc16(data, HAL_BLOCK);
    const uint8_t trailer[2] = {(uint8_t)(crc >> 8), (uint8_t)crc};
    exchange(sd, start_token, NULL, sizeof start_token);
    exchange(sd, data, NULL, HAL_BLOCK);
    exchange(sd, trailer, NULL, sizeof trailer);
    if ((receive(sd) & 0x1fu) != DATA_ACCEPTED) {
        return HAL_E_IO;
    }
    return wait_not_busy(sd, SD_WRITE_TIMEOUT_MS);
}

static hal_status write(const void *config, void *state, uint64_t block, uint32_t count, const void *data)
{
    const struct spi_sd_config *sd = config;
    const struct spi_sd_state *card = state;
    if (!in_range(card, block, count)) {
        return HAL_E_RANGE;
    }
    const uint8_t *from = data;
    hal_status status = HAL_OK;
    select(sd, true);
    for (uint32_t i = 0; status == HAL_OK && i < count; i++, from += HAL_BLOCK) {
        status = write_block(sd, address(card, block + i), from);
    }
    select(sd, false);
    return status;
}

const struct hal_block_api spi_sd_api = {
    .init = init, .block_count = block_count, .depth = 1, .start = start, .step = step, .write = write};
